"use strict";

// One photo and its atlas, in a file.

const data = JSON.parse(part("data").textContent);
const atlas = new Atlas(data);

const rows = data.subjects.map((subject, at) => {
  const content = [element("strong", {}, nameOf(subject)), element("span", {}, number(subject.score))];
  const row = element("button", { type: "button", "aria-pressed": "false" }, ...content);
  row.classList.toggle("faint", !atlas.has(at));
  for (const event of ["pointerenter", "focus"]) row.addEventListener(event, () => probe.light(at));
  for (const event of ["pointerleave", "blur"]) row.addEventListener(event, () => probe.light(null));
  row.addEventListener("click", () => {
    probe.press(probe.pressed === at ? null : at);
    mark();
  });
  part("classes").append(element("li", {}, row));
  return row;
});

function mark() {
  rows.forEach((row, at) => {
    row.classList.toggle("best", at === probe.pointed);
    row.setAttribute("aria-pressed", at === probe.pressed);
  });
}

const probe = new Probe(part("photo"), { moved: () => probe && mark() });
part("photo").style.aspectRatio = data.size.join(" / ");
probe.ask(data.size, atlas);
part("photo").querySelector("img").decode().finally(() => probe.keep(data.at ?? atlas.peak));
addEventListener("resize", () => probe.move(probe.stays));
