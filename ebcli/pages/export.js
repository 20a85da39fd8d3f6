"use strict";

// The command line and the picture of what is shown, which follow when it is not changing any more.

const SETTLED = 120; // ms

class Export {
  constructor(root) {
    this.code = root.querySelector(".command");
    this.copying = root.querySelector(".copy");
    this.download = root.querySelector(".download");
    this.root = root;
    this.copying.addEventListener("click", () => this.copy());
    this.download.addEventListener("click", () => this.save());
    this.wait();
  }

  // They belong to something else: both buttons wait.
  wait() {
    clearTimeout(this.soon);
    this.soon = null;
    this.root.classList.add("stale");
    this.copying.disabled = true;
    this.download.disabled = true;
  }

  // There is nothing that they could belong to.
  clear() {
    this.wait();
    this.code.textContent = "";
  }

  follow(query) {
    this.wait();
    const turn = (this.soon = setTimeout(async () => {
      const answer = await server.fetch(`/command?${query}`).then((found) => found.json()).catch((error) => error);
      if (turn !== this.soon) return;
      this.root.classList.remove("stale");
      this.code.textContent = answer.command ?? answer.message;
      this.copying.disabled = !answer.command;
      this.download.disabled = !answer.command;
      this.download.dataset.address = `/picture?${query}`;
    }, SETTLED));
  }

  // The picture as a file, under the name that the server gives it.
  async save() {
    const label = this.download.textContent;
    try {
      const answer = await server.fetch(this.download.dataset.address);
      const [, download] = answer.headers.get("content-disposition").match(/filename="(.*)"/);
      const href = URL.createObjectURL(await answer.blob());
      element("a", { href, download }).click();
      setTimeout(() => URL.revokeObjectURL(href), 60_000); // the browser reads it meanwhile
    } catch (error) {
      this.download.textContent = error.message;
      setTimeout(() => (this.download.textContent = label), 5000);
    }
  }

  async copy() {
    getSelection().selectAllChildren(this.code);
    try {
      await navigator.clipboard.writeText(this.code.textContent);
      this.copying.textContent = "Copied";
    } catch {
      this.copying.textContent = "Selected"; // without https, the clipboard is for this machine's pages only
    }
    setTimeout(() => (this.copying.textContent = "Copy"), 1500);
  }
}
