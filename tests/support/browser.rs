//! A real Chromium, in the container `browser` (tests/images/browser), by its own WebDriver.
//!
//! What a test serves on this machine's 127.0.0.1 the browser finds as `http://localhost`, which it takes for its own machine's: the name
//! leads to this machine's address on the servers' network, where a [`Forwarder`] passes on what comes.

use super::program::wait_until;
use super::{env, server};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
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
    passing: Arc<Mutex<Passing>>,
}

#[derive(Default)]
struct Passing {
    answers_502: bool,
    streams: Vec<TcpStream>,
}

impl Forwarder {
    pub fn start() -> Self {
        let listener = TcpListener::bind((addresses().1, 0)).expect("this machine is on the servers' network");
        let port = listener.local_addr().expect("an address").port();
        let passing = Arc::<Mutex<Passing>>::default();
        let shared = Arc::clone(&passing);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut passing = shared.lock().expect("nobody panics");
                if passing.answers_502 {
                    std::thread::spawn(move || answer_502(&stream));
                } else if let Ok(there) = TcpStream::connect(("127.0.0.1", port)) {
                    pass(&stream, &there);
                    pass(&there, &stream);
                    passing.streams.push(stream);
                }
            }
        });
        Self { port, passing }
    }

    /// From now on it is a proxy whose server restarts, which cuts off all connections and answers itself; or none any more.
    pub fn answers_502(&self, does: bool) {
        let mut passing = self.passing.lock().expect("nobody panics");
        passing.answers_502 = does;
        for stream in passing.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn answer_502(stream: &TcpStream) {
    let mut lines = BufReader::new(stream).lines();
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let mut stream = stream;
    let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// Another host, which knows who comes to it.
pub struct Canary {
    /// `http://ADDRESS:PORT`
    pub origin: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Canary {
    pub fn start() -> Self {
        Self::with_page("hi")
    }

    /// One that answers with this page, whatever it is asked.
    pub fn with_page(page: &str) -> Self {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
            page.len()
        );
        let answer: Arc<str> = answer.into();
        let listener = TcpListener::bind((addresses().1, 0)).expect("this machine is on the servers' network");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let writes = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // That somebody connects is what an author can see, whatever is asked then.
                let at = {
                    let mut heard = writes.lock().expect("nobody panics");
                    heard.push("a connection".into());
                    heard.len() - 1
                };
                let (writes, answer) = (Arc::clone(&writes), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut line = String::new();
                    if BufReader::new(&stream).read_line(&mut line).is_ok_and(|length| length > 0) {
                        writes.lock().expect("nobody panics")[at] = line.trim().to_owned();
                    }
                    let _ = (&stream).write_all(answer.as_bytes());
                });
            }
        });
        Self { origin, heard }
    }

    /// What it was asked, connection by connection.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("nobody panics").clone()
    }
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
            // In milliseconds: axe-core takes its time on a busy machine.
            "timeouts": { "script": 300_000, "pageLoad": 300_000 },
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

    /// Follows a link to log in, and clicks.
    #[track_caller]
    pub fn log_in(&self, link: &str) {
        self.go(link);
        self.confirm_login();
    }

    /// Clicks on the page that says who is about to be logged in.
    #[track_caller]
    pub fn confirm_login(&self) {
        let button = "document.querySelector('form[action=\"/login/confirm\"] button')";
        wait_until("it asks who this is", || self.now(&format!("return {button} != null")) == true);
        self.script(&format!("{button}.click()"));
        wait_until("the link has logged in", || self.now("return !location.pathname.startsWith('/login')") == true);
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

    /// Clicks what this selector finds in the first frame of the page, as its reader would.
    pub fn click_in_frame(&self, selector: &str) {
        self.runtime.block_on(async {
            let client = self.client();
            client.enter_frame(0).await.expect("a frame");
            let found = client.find(fantoccini::Locator::Css(selector)).await.expect("it is there");
            // Some of it cannot be clicked where it stands: that is as good.
            let _ = found.click().await;
            client.enter_parent_frame().await.expect("the page");
        });
    }

    /// The text of the first frame.
    pub fn text_of_frame(&self) -> String {
        self.runtime.block_on(async {
            let client = self.client();
            client.enter_frame(0).await.expect("a frame");
            let text = match client.find(fantoccini::Locator::Css("body")).await {
                Ok(body) => body.text().await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            client.enter_parent_frame().await.expect("the page");
            text
        })
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

    /// What axe-core finds wrong on the page that is shown.
    pub fn barriers(&self) -> Vec<String> {
        // It is there already where the page was looked at before.
        if self.script("return typeof axe") == "undefined" {
            let axe = std::fs::read_to_string(env("MAILDROP_TEST_AXE")).expect("axe-core");
            self.script(&format!("{axe}; window.axe = axe"));
        }
        let script = "const done = arguments[arguments.length - 1]; axe.run(document, { iframes: false }).then(\
             found => done(found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' '))), \
             error => done([String(error)]))";
        let found = self.runtime.block_on(self.client().execute_async(script, Vec::new())).expect("axe-core runs");
        found.as_array().expect("a list").iter().map(ToString::to_string).collect()
    }

    /// A picture of all of the page, as a PNG in base64.
    pub fn picture(&self) -> String {
        let picture = self.command("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
        picture["data"].as_str().expect("a picture").to_owned()
    }

    /// Goes there: wide and narrow, light and dark, it is for everybody, it breaks no rule of the browser, and no stranger's script runs,
    /// which would set `window.hit`. What it looks like is left in target/tests/page.
    ///
    /// # Panics
    /// Where it is not.
    #[track_caller]
    pub fn is_for_everybody(&self, name: &str, url: &str) {
        self.go(url);
        assert_eq!(self.url().trim_end_matches('/'), url.trim_end_matches('/'));
        self.shown_is_for_everybody(name);
    }

    /// The same of what is shown already.
    #[track_caller]
    pub fn shown_is_for_everybody(&self, name: &str) {
        assert_eq!(self.each_look(name), [""; 0], "{name}");
    }

    /// The same where the server answers with this status, or was cut off, which the browser says, and nothing else.
    #[track_caller]
    pub fn refusal_is_for_everybody(&self, name: &str, status: u16) {
        let mut complaints = self.each_look(name);
        let refused = [&format!("responded with a status of {status}"), "net::ERR_"];
        complaints.retain(|complaint| !refused.iter().any(|words| complaint.contains(words)));
        assert_eq!(complaints, [""; 0], "{name}");
    }

    /// What the browser complained of until it was seen with each look. It is left wide and light.
    #[track_caller]
    fn each_look(&self, name: &str) -> Vec<String> {
        let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tests/page");
        std::fs::create_dir_all(&pictures).expect("a folder for pictures");
        for (width, scheme) in [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")] {
            self.looks(width, scheme);
            assert_eq!(self.barriers(), [""; 0], "{name}, {width}, {scheme}");
            let file = pictures.join(format!("{name}-{scheme}-{width}.png"));
            let picture = STANDARD.decode(self.picture()).expect("base64");
            std::fs::write(file, picture).expect("it is written");
        }
        self.looks(320, "light");
        let too_wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(self.script(too_wide), 0, "{name} is scrolled sideways at 320 px");
        assert!(self.script("return window.hit ?? null").is_null(), "{name}: a stranger's script ran");
        self.looks(1280, "light");
        // Violations of the page's policy are among them.
        self.complaints()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let _ = self.runtime.block_on(client.close());
        }
    }
}
