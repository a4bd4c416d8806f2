//! Debian's Chromium, driven through ChromeDriver (WebDriver, <https://www.w3.org/TR/webdriver2/>).

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::until;

/// A browser with one window. It ends when the value is dropped.
pub(crate) struct Browser {
    driver: Child,
    session: String,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Browser {
    /// Starts a browser.
    pub(crate) fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = driver.spawn().unwrap();
        until("ChromeDriver listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        // The client's own provider is not installed in this process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http =
            reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(Duration::from_secs(120)).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let base = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self { driver, session: base, http, runtime };
        // Chromium's sandbox does not work for root. The other flags keep it from calling its vendor's hosts.
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ];
        let wanted = json!({"alwaysMatch": {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}});
        let created = browser.call("", &json!({"capabilities": wanted}));
        browser.session = format!("{}/{}", browser.session, created["sessionId"].as_str().unwrap());
        browser
    }

    /// Sends a command of WebDriver, and returns its value.
    #[track_caller]
    fn call(&self, path: &str, body: &Value) -> Value {
        let request = self.http.post(format!("{}{path}", self.session)).json(body);
        let answer: Value = self.runtime.block_on(async { request.send().await.unwrap().json().await.unwrap() });
        assert!(answer["value"]["error"].is_null(), "{path} {body}: {answer}");
        answer["value"].clone()
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.call("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// Opens an address.
    pub(crate) fn open(&self, address: &str) {
        self.call("/url", &json!({"url": address}));
    }

    /// Opens a new tab in front of the others, and uses it from now on.
    pub(crate) fn new_window(&self) {
        let made = self.call("/window/new", &json!({"type": "tab"}));
        let request = json!({"handle": made["handle"]});
        self.call("/window", &request);
    }

    /// Runs the body of a function in the page, and returns its value. Works also if pages may run no scripts.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub(crate) fn until(&self, expression: &str) {
        until(expression, || {
            std::thread::sleep(Duration::from_millis(20));
            self.run(&format!("return Boolean({expression})")) == true
        });
    }

    /// Clicks the first element with this selector, as a user does.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        let found = self.call("/element", &json!({"using": "css selector", "value": selector}));
        let id = found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned();
        self.call(&format!("/element/{id}/click"), &json!({}));
    }

    /// Presses keys. The tabulator is `\u{e004}`, and Enter `\u{e007}`.
    pub(crate) fn press(&self, keys: &str) {
        let actions: Vec<Value> =
            keys.chars().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key}))).collect();
        self.call("/actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
    }

    /// Sets the width of the window and the theme that the user prefers.
    pub(crate) fn look(&self, width: u32, theme: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// What the browser has complained about, such as an error of a script or a blocked file.
    pub(crate) fn complaints(&self) -> Vec<Value> {
        self.call("/se/log", &json!({"type": "browser"})).as_array().unwrap().clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.runtime.block_on(async { self.http.delete(&self.session).send().await });
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
