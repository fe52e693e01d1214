"""Looks at the demo's history in a real browser, page by page, and takes the pictures that the documents show.

Run by `make browser`, after `make demo`. It needs Debian's chromium.
"""

import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from retention_pipeline.dev.state import free_port
from retention_pipeline.postgres.sample import SAMPLE

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
PATIENCE_MS = 30_000


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("Debian's package `chromium` is missing: apt-get install chromium", file=sys.stderr)
        return 2
    if not (ROOT / ".retention" / "demo.json").exists():
        print("There is no history to look at: run `make demo` first.", file=sys.stderr)
        return 2
    IMAGES.mkdir(exist_ok=True)
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1500, "height": 950})
        page.set_default_timeout(PATIENCE_MS)
        for name, look in PAGES.items():
            look(page, address)
            page.wait_for_timeout(1500)  # panels slide in
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"{name}: looked, docs/images/{name}.png")
        browser.close()
    print(f"{len(PAGES)} passed, 0 failed")
    return 0


@contextmanager
def served():
    port = free_port()
    command = [sys.executable, "-m", "retention_pipeline", "dev", "--port", str(port), "--read-only"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(120):
                if process.poll() is not None:
                    raise SystemExit("`retention dev` ended at once.")
                if answers(address):
                    break
                time.sleep(1)
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def graph(page: Page, address: str) -> None:
    """D1: the lineage shows the order without an explanation."""
    page.goto(f"{address}/locations/retention_pipeline/asset-groups/workflow_instances/lineage")
    for name in ("inventory", "eligible_set", "_manifests", "verified_objects", "deletions", "archive_retention"):
        page.get_by_text(name).first.wait_for()


def partition(page: Page, address: str) -> None:
    page.goto(f"{address}/assets/inventory?view=partitions&partition={SAMPLE[0].id}")
    page.get_by_text("Materialized").first.wait_for()
    page.get_by_text("dispositions").first.wait_for()


def deletions(page: Page, address: str) -> None:
    page.goto(f"{address}/assets/deletions?view=partitions&partition={SAMPLE[0].id}")
    page.get_by_text("why_it_ended").first.wait_for()


def checks(page: Page, address: str) -> None:
    page.goto(f"{address}/assets/inventory?view=checks")
    page.get_by_text("canary_proven").first.wait_for()


def runs(page: Page, address: str) -> None:
    page.goto(f"{address}/runs")
    page.get_by_text("reconcile_tenants").first.wait_for()


def sweeps(page: Page, address: str) -> None:
    """Each sweep says what it ends; nobody has to know the code."""
    page.goto(f"{address}/locations/retention_pipeline/asset-groups/sweeps/lineage")
    for name in ("ephemeral_payloads", "submission_ledgers", "job_evidence", "workflow_history", "join_requests"):
        page.get_by_text(name).first.wait_for()


def ledgers(page: Page, address: str) -> None:
    page.goto(f"{address}/assets/submission_ledgers?view=partitions&partition={SAMPLE[0].id}")
    page.get_by_text("why_it_ended").first.wait_for()


PAGES = {
    "graph": graph,
    "inventory": partition,
    "deletions": deletions,
    "checks": checks,
    "sweeps": sweeps,
    "submission_ledgers": ledgers,
    "runs": runs,
}

if __name__ == "__main__":
    sys.exit(main())
