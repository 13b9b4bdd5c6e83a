//! The style sheet, the script and the icon are part of the program. Their names change with their content, so that browsers
//! can cache them.

use crate::base::hex;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

struct Asset {
    text: &'static str,
    kind: &'static str,
    path: String,
}

impl Asset {
    fn new(text: &'static str, stem: &str, extension: &str, kind: &'static str) -> Self {
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let digest = hex::encode(digest.get(..6).unwrap_or_default());
        Self { text, kind, path: format!("/assets/{stem}-{digest}.{extension}") }
    }
}

static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new(include_str!("assets/style.css"), "style", "css", "text/css; charset=utf-8"));
static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new(include_str!("assets/page.js"), "page", "js", "text/javascript; charset=utf-8"));

static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new(include_str!("assets/icon.svg"), "icon", "svg", "image/svg+xml"));

/// The path of the style sheet.
pub(super) fn style() -> &'static str {
    &STYLE.path
}

/// The path of the script.
pub(super) fn script() -> &'static str {
    &SCRIPT.path
}

/// The path of the icon.
pub(super) fn icon() -> &'static str {
    &ICON.path
}

pub(super) async fn serve(Path(name): Path<String>) -> Response {
    let assets = [&*STYLE, &*SCRIPT, &*ICON];
    let found = assets.into_iter().find(|asset| asset.path.strip_prefix("/assets/") == Some(name.as_str()));
    let Some(Asset { text, kind, .. }) = found else { return StatusCode::NOT_FOUND.into_response() };
    ([(CONTENT_TYPE, *kind), (CACHE_CONTROL, "public, max-age=31536000, immutable")], *text).into_response()
}
