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
  guess: null, // the photo that is shown if the address names none; it is known for good when the networks are loaded
  added: new Map(), // files of this page by what the server calls them: a server that is started again gets them anew

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

  // The controls are for one of two panes.
  activate(pane) {
    this.active = pane;
    for (const other of this.panes) other.root.classList.toggle("active", other === active());
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
  page.guess = states[0].photo === "" ? firstPhoto() : null;
  states[0].photo ||= page.guess;
  for (const pane of page.panes) pane.close();
  page.panes = states.map((one) => new Pane(page, one));
  part("panes").replaceChildren(...page.panes.map((pane) => pane.root));
  shown();
  photos();
  for (const pane of page.panes) pane.refresh();
}

const firstPhoto = () => Object.keys(page.status.photos)[0] ?? "";

function shown() {
  page.activate(active());
  part("panes").classList.toggle("two", page.panes.length > 1);
  page.panes.forEach(({ root }, index) => root.setAttribute("aria-label", page.panes.length > 1 ? `Map ${index + 1}` : "Map"));
  part("compare").setAttribute("aria-pressed", page.panes.length > 1);
  part("compare").textContent = page.panes.length > 1 ? "One only" : "Side by side";
  look.setView({ heatmap: "map", photo: "photo" }[page.look.style] ?? "overlay");
  look.setOpacity(page.look.alpha === "" ? 100 * (page.colors?.alpha ?? 1) : 100 * page.look.alpha);
  part("cells").checked = page.look.cells === "1";
  part("signed").checked = page.panes.some((pane) => pane.signed);
}

// Thumbnails, which are loaded when they are seen.
const thumbnails = new Map(); // by photo
const loader = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) loadThumbnail(target);
});

async function loadThumbnail(button) {
  loader.unobserve(button);
  const image = button.firstElementChild;
  try {
    image.src = await server.picture(`/photo?small&${new URLSearchParams({ photo: button.dataset.key })}`);
    await image.decode();
  } catch {
    // its name says what it is
  }
  URL.revokeObjectURL(image.src);
}

function thumbnail(key, name) {
  const button = element("button", { type: "button", role: "option", title: name, class: "thumbnail" }, element("img", { alt: name }));
  button.dataset.key = key;
  button.addEventListener("click", () => choosePhoto(key));
  loader.observe(button);
  return button;
}

function photos() {
  const chosen = page.panes.map(({ state }) => state.photo);
  const keys = Object.entries(page.status.photos);
  const box = part("photos");
  if ([...box.children].map((button) => button.dataset.key).join() !== keys.map(([key]) => key).join()) {
    for (const [key, name] of keys) if (!thumbnails.has(key)) thumbnails.set(key, thumbnail(key, name));
    box.replaceChildren(...keys.map(([key]) => thumbnails.get(key)));
  }
  for (const button of box.children) button.setAttribute("aria-selected", chosen.includes(button.dataset.key));
  part("camera").setAttribute("aria-pressed", active().isLive);
  const isVolume = Boolean(active().isVolume);
  part("camera").hidden = !active().takesCamera && !active().isLive;
  part("add").textContent = isVolume ? "Add volumes …" : "Add photos …";
  part("files").accept = isVolume ? "" : "image/*";
  if (!chosen.includes(CAMERA)) camera.close();
}

// The pane that photos and keys are for: the one that was used last.
const active = () => (page.panes.includes(page.active) ? page.active : page.panes.at(-1));

function choosePhoto(key) {
  const { network, layer, question } = active().state;
  active().change({ photo: key, target: "", against: "", box: "", pixel: "", voxel: "", network, layer, question });
}

// Photos of this machine; the last one is shown, unless they are of the camera.
async function upload(files, isShown = true) {
  const problems = [];
  for (const file of files) {
    try {
      const key = await send(file);
      await readStatus();
      if (isShown) choosePhoto(key);
      else photos();
    } catch (error) {
      problems.push(`${file.name}: ${error.message}`);
    }
  }
  page.trouble(problems.join("; "));
}

async function send(file) {
  const answer = await server.fetch(`/photos?${new URLSearchParams({ name: file.name })}`, { body: file });
  const { key } = await answer.json();
  page.added.set(key, file);
  return key;
}

// After the server was started again: it has none of the files that were added.
async function sendAgain() {
  const problems = [];
  for (const [key, file] of page.added) {
    if (key in page.status.photos) continue;
    await send(file).catch(() => problems.push(`${file.name} is gone: add it again`));
  }
  await readStatus();
  page.trouble(problems.join("; "));
}

async function readStatus() {
  page.status = await (await server.fetch("/status")).json();
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
    const names = await (await server.fetch(`/classes?network=${number}`)).json();
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
  if (page.panes.length > 1) {
    page.panes.pop().close();
  } else {
    const { state } = page.panes[0];
    const other = { ...state };
    if (page.status.networks.length > 1) {
      const network = state.network === "1" ? "0" : "1";
      const target = page.className(state.network, state.target);
      const isKnown = [...(part(`classes-${network}`)?.options ?? [])].some(({ value }) => value === target);
      Object.assign(other, { network, layer: "", against: "", box: "", pixel: "", voxel: "", target: isKnown ? target : "" });
    }
    page.active = new Pane(page, other);
    page.panes.push(page.active);
    part("panes").append(page.panes[1].root);
    page.panes[1].refresh();
  }
  page.changed(true);
}

function onKey(event) {
  if (!isCommand(event) || !page.panes.length) return;
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

// The camera in place of a photo, or the photo again that was there before.
function toggleCamera() {
  const pane = active();
  const next = pane.isLive ? (pane.before ?? firstPhoto()) : CAMERA;
  pane.before = pane.state.photo;
  choosePhoto(next);
}

// Without the right token, or without a server.
function closed(problem) {
  part("entry").hidden = false;
  part("entry-problem").textContent = problem;
  if (!page.panes.length) part("lead").textContent = "";
}

function enter(text) {
  server.enter(text);
  begin().catch((error) => page.trouble(part("entry").hidden ? error.message : ""));
}

function listen() {
  server.closed = closed;
  part("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    enter(part("address").value);
    part("address").value = "";
  });
  addEventListener("hashchange", arrive);
  part("camera").addEventListener("click", toggleCamera);
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

// The token leaves the address bar, and so what is copied from there.
function arrive() {
  const { hash, pathname, search } = location;
  if (hash) history.replaceState(null, "", pathname + search);
  enter(hash);
}

async function begin() {
  let isDone = await readStatus();
  part("entry").hidden = true;
  part("bar").hidden = false;
  if (page.added.size) await sendAgain();
  page.atlases.clear();
  restore();
  page.colors = await (await server.fetch("/colors")).json();
  shown();
  for (const pane of page.panes) pane.draw();
  while (true) {
    const ready = page.status.networks.map((one) => one.ready || one.problem);
    await classes();
    if (page.panes[0].state.photo === page.guess) page.panes[0].state.photo = firstPhoto();
    photos();
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

look.add(part("look"));
listen();
arrive();
