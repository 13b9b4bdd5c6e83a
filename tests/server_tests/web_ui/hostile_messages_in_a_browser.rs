//! Messages whose authors try all that a browser could do for them, shown by the page in a real Chromium: nothing runs, nothing
//! is fetched, nothing changes.

use crate::support::browser::{Browser, Canary};
use crate::support::program::wait_until;
use crate::web_ui::screens_in_a_browser::Served;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// What an author may have a browser fetch, run or send. `CANARY` is his host.
const HOSTILE: &str = r#"<!DOCTYPE html><html><head>
<base href="CANARY/base/"><meta http-equiv="refresh" content="1;url=CANARY/refresh"><meta name="referrer" content="unsafe-url">
<meta http-equiv="x-dns-prefetch-control" content="on">
<link rel="preconnect" href="CANARY"><link rel="dns-prefetch" href="CANARY"><link rel="stylesheet" href="CANARY/css">
<LINK REL=prefetch HREF="CANARY/prefetch"><link rel="preload" as="image" href="CANARY/preload"><link rel="icon" href="CANARY/icon">
<link rel="modulepreload" href="CANARY/module"><link rel="manifest" href="CANARY/manifest">
<style>@import url(CANARY/import); @font-face { font-family: far; src: url(CANARY/font) } body { background: url(CANARY/background) }
p { font-family: far; list-style-image: url(CANARY/list) } p::before { content: url(CANARY/before) }</style>
<script>parent.hit = top.hit = 1; fetch('CANARY/fetch'); navigator.sendBeacon('CANARY/beacon'); top.location = 'CANARY/top'</script>
<script src="CANARY/script"></script></head>
<body background="CANARY/body" onload="parent.hit = 2">
<p>This is the letter.</p>
<img src="CANARY/img" onerror="parent.hit = 3"><img src="x" onerror="parent.hit = 4"><img srcset="CANARY/srcset 1x" loading="eager">
<picture><source srcset="CANARY/source"><img></picture><img src="relative.png">
<div style="background-image: url('CANARY/style')">styled</div><table background="CANARY/table"><tr><td>cell</td></tr></table>
<svg onload="parent.hit = 5"><script>parent.hit = 6</script><image href="CANARY/image" width="9" height="9"/><use href="CANARY/use#x"/>
<filter id="f"><feImage href="CANARY/feimage"/></filter><rect width="9" height="9" filter="url(#f)" fill="url(CANARY/fill#x)"/></svg>
<img src="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'><image href='CANARY/nested'/><script>parent.hit = 7</script></svg>">
<iframe src="CANARY/frame"></iframe><iframe srcdoc="<img src='CANARY/srcdoc'><script>top.hit = 8</script>"></iframe>
<iframe src="javascript:parent.parent.hit = 9"></iframe><object data="CANARY/object"></object><embed src="CANARY/embed">
<video src="CANARY/video" poster="CANARY/poster" autoplay muted></video><audio src="CANARY/audio" autoplay></audio>
<form id="form" action="CANARY/form" method="post"><input name="a" value="b" autofocus onfocus="parent.hit = 10">
<input type="image" src="CANARY/input"><button id="button" formaction="CANARY/button">Win</button></form><script>form.submit()</script>
<a id="link" href="CANARY/link" ping="CANARY/ping" target="_top">Read on</a> <a id="self" href="CANARY/self">Read on here</a>
<a id="blank" href="CANARY/blank" target="_blank">Read on elsewhere</a> <a id="script" href="javascript:top.hit = 11">Read on now</a>
<details open ontoggle="parent.hit = 12"><summary>More</summary></details><marquee onstart="parent.hit = 13">run</marquee>
</body></html>"#;

/// A host of its own for each thing that may be fetched: so what was fetched is known where only a connection is made.
struct Hosts(Vec<(String, Canary)>);

impl Hosts {
    /// Them, and the HTML that leads to them.
    fn of(html: &str) -> (Self, String) {
        let mut pieces = html.split("CANARY");
        let mut led = pieces.next().unwrap().to_owned();
        let mut hosts = Vec::new();
        for piece in pieces {
            let host = Canary::start();
            led = led + &host.origin + piece;
            let end = piece.find(['"', '\'', ')', ' ']).unwrap();
            hosts.push((
                format!(
                    "{} at {}",
                    &piece[..end],
                    &led[led.len().saturating_sub(piece.len() + 60)..led.len() - piece.len()]
                ),
                host,
            ));
        }
        (Self(hosts), led)
    }

    /// Who received it.
    fn heard(&self) -> Vec<String> {
        let heard = |(name, host): &(String, Canary)| match host.heard() {
            none if none.is_empty() => None,
            some => Some(format!("{name}: {some:?}")),
        };
        self.0.iter().filter_map(heard).collect()
    }
}

/// A message of somebody who tries all of it.
fn letter(html: &str) -> String {
    let trick =
        "</title></pre></iframe><script>window.hit = 14</script><img src=x onerror=window.hit=15>\u{202e}fdp.exe";
    format!(
        "From: \"{trick}\" <lisa@gmail.com>\nTo: {trick} <scuba@x>\nMessage-ID: <hostile@x>\nSubject: {trick}\n\
         X-<script>window.hit=18</script>: {trick}\n\
         MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain; charset=utf-8\n\n{trick}\n\
         --b\nContent-Type: text/html; charset=utf-8\n\n{html}\n--b\nContent-Type: image/svg+xml\n\
         Content-Disposition: attachment; filename*=utf-8''%3Cscript%3Ewindow.hit=16%3C/script%3E%E2%80%AEgpj.exe\n\n\
         <svg xmlns='http://www.w3.org/2000/svg' onload='window.hit=17'/>\n--b--\n"
    )
}

/// Logs in, and finds what is in the newest message for whose recipient this is.
fn content_of(browser: &Browser, served: &Served, recipient: &str) -> String {
    browser.go(&format!("{}/?user={recipient}", served.origin));
    let found = browser.script("return document.querySelector('tbody a').href").as_str().unwrap().to_owned();
    format!("{}/content", found.split('?').next().unwrap())
}

/// Opens the frame with the HTML, and waits until it is loaded.
fn open_frame(browser: &Browser) {
    browser.script("document.querySelector('details').open = true; document.querySelector('iframe').scrollIntoView()");
    wait_until("the frame is loaded", || {
        browser.now(
            "return performance.getEntriesByType('resource').some(one => one.name.endsWith('/html') && one.responseEnd > 0) \
             && document.readyState == 'complete'",
        ) == true
    });
}

/// What the page itself has done that a policy forbids: not the frame, in which much is forbidden.
fn complaints_of_page(browser: &Browser) -> Vec<String> {
    let mut complaints = browser.complaints();
    let of_frame = ["/html ", "about:srcdoc"];
    complaints.retain(|complaint| !of_frame.iter().any(|frame| complaint.contains(frame)));
    complaints
}

#[test]
fn whatever_is_in_a_message_nothing_runs_and_nothing_is_fetched() {
    let served = Served::start();
    let proof = Canary::start();
    let (hosts, html) = Hosts::of(HOSTILE);
    let browser = Browser::start();
    // Without the page's care the author's host hears of it, in many ways; but for what leads away before that.
    let plain =
        HOSTILE.replace("CANARY", &proof.origin).replace("form.submit()", "").replace("top.location", "top.nowhere");
    let elsewhere = Canary::with_page(&plain);
    browser.go(&elsewhere.origin);
    wait_until("the host hears of it", || {
        let heard = proof.heard().join("\n");
        ["/img ", "/css ", "/import ", "/background ", "/style ", "/frame ", "/script ", "/fetch ", "/refresh "]
            .iter()
            .all(|path| heard.contains(path))
    });
    browser.go("about:blank");

    served.deliver(&letter(&html), "scuba@x").delivered();
    browser.log_in(&served.link);
    let content = content_of(&browser, &served, "scuba@x");
    browser.complaints();
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tests/page");
    std::fs::create_dir_all(&pictures).unwrap();
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")] {
        browser.looks(width, scheme);
        browser.go(&content);
        assert_eq!(browser.barriers(), [""; 0], "closed, {width}, {scheme}");
        open_frame(&browser);
        wait_until("the frame shows the letter", || browser.text_of_frame().contains("This is the letter."));
        assert_eq!(browser.barriers(), [""; 0], "{width}, {scheme}");
        let picture = STANDARD.decode(browser.picture()).unwrap();
        std::fs::write(pictures.join(format!("content-{scheme}-{width}.png")), picture).unwrap();
    }
    browser.looks(320, "light");
    let too_wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(browser.script(too_wide), 0, "it is scrolled sideways at 320 px");
    assert_eq!(complaints_of_page(&browser), [""; 0]);
    let screen = browser.text();
    for has in ["<script>window.hit = 14</script>", "[U+202E]fdp.exe", "[U+202E]gpj.exe"] {
        assert!(screen.contains(has), "{has}: {screen}");
    }
    assert!(!screen.contains('\u{202e}'));

    // Its reader clicks on all there is.
    for what in ["#link", "#self", "#blank", "#script", "#button"] {
        browser.go(&content);
        open_frame(&browser);
        wait_until("the frame shows the letter", || browser.text_of_frame().contains("This is the letter."));
        browser.click_in_frame(what);
        assert_eq!(browser.url(), content, "{what} leads away");
        assert_eq!(browser.script("return window.length"), 1, "{what}: one frame, and no other window");
    }
    assert!(browser.script("return window.hit ?? null").is_null(), "a stranger's script ran");
    // The HTML by itself, in a window of its own.
    browser.go(&content.replace("/content", "/html"));
    assert!(browser.text().contains("This is the letter."));
    assert!(browser.url().ends_with("/html"));
    // What was asked for before comes before this.
    browser.go(&format!("{}/last", proof.origin));
    assert!(proof.heard().iter().any(|line| line.contains("/last")));
    assert_eq!(hosts.heard(), [""; 0]);

    // The part that is a picture with a script in it is a file to be saved, for every user.
    browser.go(&content);
    let kept = browser.script(
        "return Promise.all(['source', 'parts/2', 'parts/3'].map(path => fetch(location.pathname.replace('content', path)).then(\
         answer => answer.headers.get('content-type') + ' ' + answer.headers.get('content-disposition').split(';')[0])))",
    );
    assert_eq!(kept, serde_json::json!(vec!["application/octet-stream attachment"; 3]));

    let log = format!("{}/log", served.origin);
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")] {
        browser.looks(width, scheme);
        browser.go(&log);
        assert_eq!(browser.barriers(), [""; 0], "operations, {width}, {scheme}");
        let picture = STANDARD.decode(browser.picture()).unwrap();
        std::fs::write(pictures.join(format!("operations-{scheme}-{width}.png")), picture).unwrap();
    }
    browser.looks(320, "light");
    assert_eq!(browser.script(too_wide), 0, "operations are scrolled sideways at 320 px");
    assert!(browser.text().contains("looked at content"), "{}", browser.text());
    assert_eq!(complaints_of_page(&browser), [""; 0]);
}

#[test]
fn ten_megabytes_of_html_are_cut_and_a_picture_that_came_with_it_is_shown() {
    let served = Served::start();
    let browser = Browser::start();
    let much = "<p>much</p>\n".repeat(900_000);
    served
        .deliver(
            &format!(
                "From: lisa@gmail.com\nMessage-ID: <much@x>\nContent-Type: text/html\n\n<p>It begins.</p>{much}\n"
            ),
            "doug@x",
        )
        .delivered();
    // One red pixel.
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
    let with_picture = format!(
        "From: lisa@gmail.com\nMessage-ID: <pic@x>\nContent-Type: multipart/related; boundary=b\n\n--b\nContent-Type: text/html\n\n\
         <p>A picture: <img id=picture width=50 height=50 src='cid:pic@x'></p>\n--b\nContent-Type: image/png\nContent-ID: <pic@x>\n\
         Content-Transfer-Encoding: base64\n\n{pixel}\n--b--\n"
    );
    served.deliver(&with_picture, "scuba@x").delivered();
    browser.log_in(&served.link);

    browser.go(&content_of(&browser, &served, "doug@x"));
    assert!(browser.text().contains("This is the first 2 MB"), "{}", browser.text());
    open_frame(&browser);
    browser.go(&content_of(&browser, &served, "scuba@x"));
    // HTML that stands alone is shown at once.
    assert_eq!(browser.script("return document.querySelector('details').open"), true);
    open_frame(&browser);
    wait_until("the frame shows it", || browser.text_of_frame().contains("A picture:"));
    browser.looks(1280, "light");
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tests/page");
    std::fs::create_dir_all(&pictures).unwrap();
    std::fs::write(pictures.join("content-picture-light-1280.png"), STANDARD.decode(browser.picture()).unwrap())
        .unwrap();
    // By itself, where a script of ours can ask.
    browser.go(&browser.url().replace("/content", "/html"));
    let width = browser.script("return document.getElementById('picture').naturalWidth");
    assert_eq!(width, 1, "the picture is shown");
}
