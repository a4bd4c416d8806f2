//! The page of `ui` in Chromium.

use std::fs;

use protocol::view::JobState;
use serde_json::json;

use crate::support::browser::Browser;
use crate::support::live_master::{Jobs, LiveMaster};
use crate::support::page::Page;
use crate::support::views::{failed, line, running, succeeded};

fn with_jobs() -> LiveMaster {
    let points: Vec<_> = (1..30_u32)
        .map(|at| json!({"at": 5000 * at, "generation": "1.1", "progress": {"step": 40 * at, "steps": 40 * at, "wall_us": 800_000 * at, "values": {"loss": 2.0 / f64::from(at)}}}))
        .collect();
    let series =
        json!({"replicas": [{"replica": "worker-0", "points": points}, {"replica": "worker-1", "points": points}]});
    let views = vec![running("digits"), failed("letters"), succeeded("old")];
    let long = "x".repeat(3000);
    let lines = vec![line("worker-0", 4, "\u{1b}[31mone\u{1b}[0m"), line("worker-1", 9, &format!("<b>two</b> {long}"))];
    LiveMaster::start(Jobs { views, lines, series: Some(series), ..Jobs::default() })
}

/// Elements with text that is hard to read: a contrast below 4.5 between the text and the ground behind it (WCAG 2.2, 1.4.3).
const PALE: &str = r"
const parts = (color) => color.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, index) => sum + c * [.2126, .7152, .0722][index], 0);
const ground = (element) => {
  for (let it = element; it; it = it.parentElement) {
    const color = parts(getComputedStyle(it).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
return [...document.querySelectorAll('body *')].filter((it) => own(it) && it.getClientRects().length && !it.closest('.hidden, .skip'))
  .map((it) => {
    const [a, b] = [light(parts(getComputedStyle(it).color)), light(ground(it))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), it.outerHTML.slice(0, 90)];
  }).filter(([contrast]) => contrast < 4.5);";

/// What a screen reader cannot name: controls without a name, images without a text, headings that skip a level, two elements
/// with one id.
const NAMELESS: &str = r"
const name = (it) => (it.getAttribute('aria-label') || it.closest('label')?.textContent || it.textContent || it.title || '').trim();
const found = [...document.querySelectorAll('a, button, input:not([type=hidden]), select, [role=img], dialog')].filter((it) => !name(it));
const levels = [...document.querySelectorAll('h1, h2, h3')].map((it) => Number(it.tagName[1]));
const skipped = levels.filter((level, index) => level > (levels[index - 1] ?? 0) + 1);
const ids = [...document.querySelectorAll('[id]')].map((it) => it.id);
const twice = ids.filter((id, index) => ids.indexOf(id) !== index);
return [...found.map((it) => it.outerHTML), ...skipped, ...twice, ...(document.documentElement.lang ? [] : ['no language'])];";

#[test]
#[ignore = "needs Chromium"]
fn each_page_fits_and_is_readable_in_both_themes_and_at_all_widths() {
    let browser = Browser::start();
    let page = Page::of(&with_jobs());
    for theme in ["light", "dark"] {
        for width in [360, 1600] {
            browser.look(width, theme);
            for path in [
                "",
                "jobs/digits",
                "jobs/letters",
                "jobs/digits/logs/worker-1",
                "jobs/digits/tf-config/worker-0",
                "jobs/digits/cancel",
                "jobs/none",
            ] {
                let what = format!("{path} at {width}, {theme}");
                browser.open(&format!("{}{path}", page.address));
                let overflow =
                    browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth");
                assert_eq!(overflow, 0, "{what}");
                assert_eq!(browser.run(PALE), json!([]), "{what}");
                assert_eq!(browser.run(NAMELESS), json!([]), "{what}");
            }
        }
    }
    browser.look(360, "light");
    browser.open(&page.address);
    let rows = "[...document.querySelectorAll('#jobs tbody tr')].map((row) => row.getBoundingClientRect().height)";
    let heights: Vec<f64> = serde_json::from_value(browser.run(&format!("return {rows}"))).unwrap();
    assert!(heights.len() == 3 && heights.iter().all(|height| *height < 90.0), "{heights:?}");
    let hidden = "return [...document.querySelectorAll('#jobs td')].filter((it) => it.getBoundingClientRect().right > innerWidth).length";
    assert_eq!(browser.run(hidden), 0, "each cell is within the window");
    browser.open(&format!("{}jobs/digits", page.address));
    let ground = |verb: &str| {
        browser.run(&format!("return getComputedStyle(document.querySelector('a.{verb}')).backgroundColor"))
    };
    assert_ne!(ground("cancel"), ground("delete"), "the two buttons look alike");
    let grounds = ["light", "dark"].map(|theme| {
        browser.look(1600, theme);
        browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    });
    assert_ne!(grounds[0], grounds[1]);
    let complaints = browser.complaints();
    let real: Vec<_> =
        complaints.iter().filter(|it| !it["message"].as_str().unwrap_or_default().contains("404")).collect();
    assert!(real.is_empty(), "{real:?}");
}

#[test]
#[ignore = "needs Chromium"]
fn an_open_page_follows_the_job() {
    let browser = Browser::start();
    let master = with_jobs();
    let page = Page::of(&master);
    browser.open(&format!("{}jobs/digits", page.address));
    browser.until("document.getElementById('live').textContent === 'live'");
    browser.until("document.getElementById('log').textContent.includes('<b>two</b>')");
    assert_eq!(browser.run("return document.querySelectorAll('#log .f1').length"), 1);
    assert_eq!(browser.run("return document.querySelectorAll('#log b').length"), 0, "output is text");

    browser.run("document.querySelector('#replicas a').focus(); document.querySelector('#charts details').open = true");
    master.change(|jobs| {
        jobs.views[0].replicas_mut()[0].reason = Some("slow".to_owned());
        jobs.lines.push(line("worker-0", 20, "three"));
    });
    browser.until("document.getElementById('replicas').textContent.includes('slow')");
    browser.until("document.getElementById('log').lastElementChild.textContent.includes('three')");
    assert_eq!(browser.run("return document.activeElement.textContent"), "worker-0", "the focus stays");
    assert_eq!(browser.run("return document.querySelector('#charts details').open"), true);
    assert_eq!(browser.run("return document.getElementById('log').children.length"), 3, "each line once");

    browser.run("const search = document.querySelector('[data-filter]'); search.value = 'THREE'; search.oninput()");
    assert_eq!(browser.run("return [...document.getElementById('log').children].filter((it) => !it.hidden).length"), 1);
    master.change(|jobs| jobs.views[0].state = JobState::Stopping);
    browser.until("document.getElementById('said').textContent === 'The job is stopping'");
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn an_action_is_confirmed_in_a_dialog_with_the_keyboard() {
    let browser = Browser::start();
    let master = with_jobs();
    let page = Page::of(&master);
    browser.open(&format!("{}jobs/digits", page.address));
    browser.run("document.querySelector('a.cancel').focus()");
    browser.press("\u{e007}");
    browser.until("document.querySelector('dialog[open] button.cancel')");
    browser.press("\u{e00c}");
    browser.until("!document.querySelector('dialog[open]')");
    assert_eq!(master.count("POST"), 0, "Escape closes the question");
    browser.click("a.cancel");
    browser.until("document.querySelector('dialog[open] button.cancel')");
    browser.click("dialog button.cancel");
    browser.until("location.pathname.endsWith('/jobs/digits') && !document.querySelector('dialog[open]')");
    assert_eq!(master.count("POST /v1/jobs/digits/cancel"), 1);
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn without_javascript_all_pages_and_actions_work() {
    let browser = Browser::start();
    let master = with_jobs();
    let page = Page::of(&master);
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    browser.open(&page.address);
    browser.click("a[href='jobs/digits']");
    browser.until("document.title.startsWith('digits')");
    assert_eq!(browser.run("return document.getElementById('live').textContent"), "", "no script has run");
    assert_eq!(browser.run("return document.querySelectorAll('#charts svg polyline').length"), 3);
    browser.click("a.cancel");
    browser.until("document.querySelector('main > form.ask')");
    browser.click("button.cancel");
    browser.until("document.title.startsWith('digits')");
    assert_eq!(master.count("POST /v1/jobs/digits/cancel"), 1);
}

#[test]
#[ignore = "needs Chromium"]
fn the_file_that_opens_the_page_leads_to_it() {
    let browser = Browser::start();
    let page = Page::of(&with_jobs());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ui.html");
    fs::write(&file, format!("<meta http-equiv=\"refresh\" content=\"0; url={}\">", page.address)).unwrap();
    browser.open(&format!("file://{}", file.display()));
    browser.until("document.title.startsWith('Jobs')");
    browser.until("document.getElementById('live').textContent === 'live'");
}

#[test]
#[ignore = "needs Chromium"]
fn a_hidden_window_gives_its_connection_to_others() {
    let browser = Browser::start();
    let master = with_jobs();
    let page = Page::of(&master);
    // A browser opens six connections to a host.
    for _ in 0..8 {
        browser.new_window();
        browser.open(&format!("{}jobs/digits", page.address));
        browser.until("document.getElementById('log')?.textContent.includes('two')");
    }
    browser.click("a.suspend");
    browser.until("document.querySelector('dialog[open] button.suspend')");
}
