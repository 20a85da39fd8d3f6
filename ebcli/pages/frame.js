"use strict";

// The parts of a pane, and what it says while it waits and if something fails.

const SLOW = 250; // ms until it is said that something is computed

class Frame {
  constructor() {
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.export = new Export(this.part("export"));
  }

  part(name) {
    return this.root.querySelector(`.${name}`);
  }

  note(...content) {
    this.part("note").hidden = !content.length;
    this.part("note").replaceChildren(...content);
  }

  // While something is computed, buttons wait, and after a moment it is said.
  wait(isBusy, text = "Computing …") {
    if (isBusy) this.root.setAttribute("aria-busy", "true");
    else this.root.removeAttribute("aria-busy");
    clearTimeout(this.slow);
    this.part("busy").textContent = "";
    if (isBusy) this.slow = setTimeout(() => (this.part("busy").textContent = text), SLOW);
    this.export.wait();
  }

  // Why there is no map: an earlier one would be taken for it.
  failed(...content) {
    this.wait(false);
    this.export.clear();
    this.showMap(null);
    this.note(...content);
  }

  // A class that does not exist, and others that may be meant.
  unknown({ message, name, near }) {
    const field = this.state.against === name ? "against" : "target";
    const choices = near.map((other) => {
      const choice = element("button", { type: "button" }, other);
      choice.addEventListener("click", () => this.change({ [field]: other, box: "" }));
      return choice;
    });
    this.failed(`${message}. `, ...(near.length ? ["Is it ", ...choices] : ["Type a part of a name, or choose one from the list"]));
  }
}
