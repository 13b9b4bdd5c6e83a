//! A real Chromium, in the container `browser` (tests/images/browser), by its own WebDriver.
//!
//! What a test serves on this machine's 127.0.0.1 the browser finds as `http://localhost`, which it takes for its own machine's: the name
//! leads to this machine's address on the servers' network, where a [`Forwarder`] passes on what comes.

use super::{env, server};
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder};
use serde_json::{Value, json};
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// The browser's address, and this machine's on the same network.
fn addresses() -> (String, String) {
    let browser = server("BROWSER");
    let net = browser.rsplit_once('.').expect("an address").0.to_owned();
    (browser, format!("{net}.1"))
}

/// A port that is the same on both sides: what connects to it on the servers' network reaches 127.0.0.1.
pub struct Forwarder {
    pub port: u16,
}

impl Forwarder {
    pub fn start() -> Self {
        let listener = TcpListener::bind((addresses().1, 0)).expect("this machine is on the servers' network");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Ok(there) = TcpStream::connect(("127.0.0.1", port)) {
                    pass(&stream, &there);
                    pass(&there, &stream);
                }
            }
        });
        Self { port }
    }
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// A browser with one window. Dropped, it ends.
pub struct Browser {
    runtime: Runtime,
    client: Option<Client>,
}

/// What WebDriver has no word for.
#[derive(Debug)]
struct Chromium(&'static str, Value);

impl WebDriverCompatibleCommand for Chromium {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (axum::http::Method, Option<String>) {
        (axum::http::Method::POST, Some(self.1.to_string()))
    }
}

impl Browser {
    pub fn start() -> Self {
        let (browser, here) = addresses();
        let rules = format!("--host-resolver-rules=MAP localhost {here}");
        let options = json!({
            "goog:chromeOptions": {
                "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", rules]
            },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = options else { unreachable!("an object") };
        let capabilities: Capabilities = capabilities;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
                .capabilities(capabilities)
                .connect(&format!("http://{browser}:9515"))
                .await
                .expect("a browser starts")
        });
        Self { runtime, client: Some(client) }
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("it runs")
    }

    #[track_caller]
    pub fn go(&self, url: &str) {
        self.runtime.block_on(self.client().goto(url)).expect("it is loaded");
    }

    pub fn url(&self) -> String {
        self.runtime.block_on(self.client().current_url()).expect("a URL").to_string()
    }

    /// What a script returns.
    #[track_caller]
    pub fn script(&self, script: &str) -> Value {
        self.runtime.block_on(self.client().execute(script, Vec::new())).expect("it runs")
    }

    /// What a script returns; null where it cannot run, as between two pages.
    pub fn now(&self, script: &str) -> Value {
        self.runtime.block_on(self.client().execute(script, Vec::new())).unwrap_or(Value::Null)
    }

    /// The text of the page, as it is shown; none between two pages.
    pub fn text(&self) -> String {
        self.now("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Types into what is in focus: special keys are in <https://www.w3.org/TR/webdriver2/#keyboard-actions>.
    #[track_caller]
    pub fn type_text(&self, text: &str) {
        let active = self.runtime.block_on(self.client().active_element()).expect("something is in focus");
        self.runtime.block_on(active.send_keys(text)).expect("it is typed");
    }

    #[track_caller]
    fn chromium(&self, path: &'static str, body: Value) -> Value {
        self.runtime.block_on(self.client().issue_cmd(Chromium(path, body))).expect("Chromium does so")
    }

    #[track_caller]
    pub fn command(&self, command: &str, parameters: Value) -> Value {
        self.chromium("goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
    }

    /// How wide the window is, and which colours its user likes: `light` or `dark`.
    pub fn looks(&self, width: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// What the browser has complained of since it was last asked: violations of a policy, scripts that fail.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.chromium("se/log", json!({ "type": "browser" }));
        log.as_array().expect("a list").iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// What axe-core finds amiss on the page that is shown.
    pub fn barriers(&self) -> Vec<String> {
        let axe = std::fs::read_to_string(env("MAILDROP_TEST_AXE")).expect("axe-core");
        let script = format!(
            "{axe}; const done = arguments[arguments.length - 1]; axe.run(document, {{ iframes: false }}).then(\
             found => done(found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' '))), \
             error => done([String(error)]))"
        );
        let found = self.runtime.block_on(self.client().execute_async(&script, Vec::new())).expect("axe-core runs");
        found.as_array().expect("a list").iter().map(ToString::to_string).collect()
    }

    /// A picture of all of the page, as a PNG in base64.
    pub fn picture(&self) -> String {
        let picture = self.command("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
        picture["data"].as_str().expect("a picture").to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let _ = self.runtime.block_on(client.close());
        }
    }
}
