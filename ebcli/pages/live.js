"use strict";

// The page: photos, looks, keys, and the address that has it all.

const LOOKS = ["style", "alpha", "cells", "signed"];
const SECOND = "b-"; // before the fields of the second pane

const page = {
  status: { networks: [], photos: {} },
  colors: null,
  look: {},
  panes: [],
  atlases: new Map(), // with the maps of their classes, by photo and network
  active: null,

  // The look as the server needs it.
  drawing() {
    const { style, ...others } = this.look;
    return { ...others, style: style === "heatmap" ? style : "" };
  },

  // Something has changed: the address says so, as a step of the history if the way back should lead here.
  changed(isStep) {
    const query = new URLSearchParams();
    this.panes.forEach(({ kept }, at) => {
      for (const name of FIELDS) if (kept[name]) query.set((at ? SECOND : "") + name, kept[name]);
    });
    for (const name of LOOKS) if (this.look[name]) query.set(name, this.look[name]);
    const address = `?${query}`;
    if (address !== location.search) history[isStep ? "pushState" : "replaceState"](null, "", address);
    photos();
    shown();
  },

  // What is wrong with an upload, until something else is done.
  trouble(text) {
    part("trouble").textContent = text;
  },

  className(network, target) {
    const option = part(`classes-${network || 0}`)?.options[target];
    return /^\d+$/.test(target) && option ? option.value : target;
  },
};

// From the address.
function restore() {
  const query = new URLSearchParams(location.search);
  const state = (before) => Object.fromEntries(FIELDS.map((name) => [name, query.get(before + name) ?? ""]));
  const states = [state("")];
  if ([...query.keys()].some((name) => name.startsWith(SECOND))) states.push(state(SECOND));
  for (const name of LOOKS) page.look[name] = query.get(name) ?? "";
  const [first] = Object.keys(page.status.photos);
  states[0].photo ||= first ?? "";
  for (const pane of page.panes) pane.giveUp?.abort();
  page.panes = states.map((one) => new Pane(page, one));
  part("panes").replaceChildren(...page.panes.map((pane) => pane.root));
  shown();
  photos();
  for (const pane of page.panes) pane.refresh();
}

function shown() {
  part("panes").classList.toggle("two", page.panes.length > 1);
  page.panes.forEach(({ root }, index) => root.setAttribute("aria-label", page.panes.length > 1 ? `Map ${index + 1}` : "Map"));
  part("compare").setAttribute("aria-pressed", page.panes.length > 1);
  part("compare").textContent = page.panes.length > 1 ? "One only" : "Side by side";
  look.setView({ heatmap: "map", photo: "photo" }[page.look.style] ?? "overlay");
  look.setOpacity(page.look.alpha === "" ? 100 * (page.colors?.alpha ?? 1) : 100 * page.look.alpha);
  part("cells").checked = page.look.cells === "1";
  part("signed").checked = page.panes.some((pane) => pane.signed);
}

// Thumbnails.
function photos() {
  const chosen = page.panes.map(({ state }) => state.photo);
  const keys = Object.entries(page.status.photos);
  const box = part("photos");
  if (box.childElementCount !== keys.length) {
    box.replaceChildren(
      ...keys.map(([key, name]) => {
        const button = element("button", { type: "button", role: "option", title: name, class: "thumbnail" });
        button.dataset.key = key;
        button.append(element("img", { src: `/photo/${key}?small`, alt: name, loading: "lazy" }));
        button.addEventListener("click", () => choosePhoto(key));
        return button;
      }),
    );
  }
  for (const button of box.children) button.setAttribute("aria-selected", chosen.includes(button.dataset.key));
}

// The pane that photos and keys are for: the one that was used last.
const active = () => (page.panes.includes(page.active) ? page.active : page.panes.at(-1));

function choosePhoto(key) {
  const { network, layer, question } = active().state;
  active().change({ photo: key, target: "", against: "", box: "", pixel: "", network, layer, question });
}

async function upload(files) {
  const problems = [];
  for (const file of files) {
    const answer = await fetch(`/photos?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    const { key, problem } = await answer.json();
    if (problem) problems.push(`${file.name}: ${problem}`);
    else {
      await readStatus();
      choosePhoto(key);
    }
  }
  page.trouble(problems.join("; "));
}

async function readStatus() {
  page.status = await (await fetch("/status")).json();
  const { networks, more } = page.status;
  const told = networks.map(({ name, ready, problem, doubt }) => problem ?? (ready ? (doubt ?? name) : `Loading ${name} …`));
  if (more) told.push(`${more} more photos are not shown`);
  part("lead").textContent = told.join(" · ");
  return networks.every(({ ready, problem }) => ready || problem);
}

// The class names, to complete what is typed.
async function classes() {
  for (const [number, { ready, texts }] of page.status.networks.entries()) {
    if (!ready || texts || part(`classes-${number}`)) continue;
    const names = await (await fetch(`/classes?network=${number}`)).json();
    document.body.append(
      element("datalist", { id: `classes-${number}` }, ...names.map((value) => element("option", { value }))),
    );
  }
}

function relook(changes) {
  Object.assign(page.look, changes);
  page.changed(false);
  for (const pane of page.panes) {
    pane.draw();
    pane.settle();
  }
}

// Another half with the same question, of the second network if there is one that knows the class.
function compare() {
  if (page.panes.length > 1) page.panes.pop().root.remove();
  else {
    const { state } = page.panes[0];
    const other = { ...state };
    if (page.status.networks.length > 1) {
      const network = state.network === "1" ? "0" : "1";
      const target = page.className(state.network, state.target);
      const isKnown = [...(part(`classes-${network}`)?.options ?? [])].some(({ value }) => value === target);
      Object.assign(other, { network, layer: "", against: "", box: "", pixel: "", target: isKnown ? target : "" });
    }
    page.panes.push(new Pane(page, other));
    part("panes").append(page.panes[1].root);
    page.panes[1].refresh();
  }
  page.changed(true);
}

function onKey(event) {
  if (!isCommand(event)) return;
  const keys = Object.keys(page.status.photos);
  const hasArrows = event.target.matches("[type=range], [type=radio]"); // which are its own
  const at = keys.indexOf(active().state.photo);
  const photo = { ArrowLeft: keys[at - 1], ArrowRight: keys[at + 1] }[event.key];
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const slide = { ",": -1, ".": 1 }[event.key];
  if (["1", "2", "3"].includes(event.key)) relook({ style: ["photo", "heatmap", ""][event.key - 1] });
  else if (event.key === "/") active().part("target").select();
  else if (photo && !hasArrows) choosePhoto(photo);
  else if (step && !hasArrows) active().step(step);
  else if (slide) active().slide(slide);
  else if (["c", "s"].includes(event.key.toLowerCase())) part(event.key.toLowerCase() === "c" ? "cells" : "signed").click();
  else return;
  event.preventDefault();
}

function listen() {
  part("files").addEventListener("change", ({ target }) => {
    upload([...target.files]);
    target.value = "";
  });
  part("look").addEventListener("change", ({ target }) => {
    if (target.type === "radio") relook({ style: { map: "heatmap", photo: "photo" }[target.value] ?? "" });
  });
  part("look").addEventListener("input", ({ target }) => {
    if (target.type === "range") relook({ alpha: String(target.value / 100) });
  });
  part("cells").addEventListener("change", ({ target }) => relook({ cells: target.checked ? "1" : "" }));
  part("signed").addEventListener("change", ({ target }) => relook({ signed: target.checked ? "1" : "0" }));
  part("compare").addEventListener("click", compare);
  addEventListener("keydown", onKey);
  addEventListener("popstate", restore);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    part("drop").hidden = false;
  });
  addEventListener("dragleave", ({ relatedTarget }) => (part("drop").hidden = relatedTarget === null));
  addEventListener("drop", (event) => {
    event.preventDefault();
    part("drop").hidden = true;
    upload([...event.dataTransfer.files]);
  });
}

async function start() {
  look.add(part("look"));
  listen();
  let isDone = await readStatus();
  restore();
  page.colors = await (await fetch("/colors")).json();
  shown();
  for (const pane of page.panes) pane.draw();
  while (true) {
    const ready = page.status.networks.map((one) => one.ready || one.problem);
    await classes();
    for (const pane of page.panes) {
      if (!pane.map) pane.refresh();
      else if (pane.state.against) { // its name is known now
        pane.fill();
        pane.draw();
      }
    }
    if (isDone) break;
    do {
      await new Promise((done) => setTimeout(done, 200));
      isDone = await readStatus();
    } while (page.status.networks.every((one, at) => Boolean(one.ready || one.problem) === Boolean(ready[at])));
  }
}

start();
