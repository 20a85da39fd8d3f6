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
    this.wait();
  }

  // They belong to something else: both buttons wait.
  wait() {
    clearTimeout(this.soon);
    this.soon = null;
    this.root.classList.add("stale");
    this.copying.disabled = true;
    this.download.removeAttribute("href");
    this.download.setAttribute("aria-disabled", "true");
  }

  // There is nothing that they could belong to.
  clear() {
    this.wait();
    this.code.textContent = "";
  }

  // `find` gets the server's answer, or throws its sentence.
  follow(query, find) {
    this.wait();
    const turn = (this.soon = setTimeout(async () => {
      const answer = await find(`/command?${query}`).then((found) => found.json()).catch((error) => error);
      if (turn !== this.soon) return;
      this.root.classList.remove("stale");
      this.code.textContent = answer.command ?? answer.message;
      this.copying.disabled = !answer.command;
      if (!answer.command) return;
      this.download.href = `/picture?${query}`;
      this.download.removeAttribute("aria-disabled");
    }, SETTLED));
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
