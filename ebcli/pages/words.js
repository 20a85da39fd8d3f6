"use strict";

// The words of answers: how often each is said, and how much of it is from the picture. A word shows its answers.

const isAnswers = data.images.some((image) => image.outcomes.some((outcome) => outcome.answer !== undefined));
const [unit, subject, massName] = isAnswers ? ["answer", "word", "share"] : ["image", "class", "mass"];
const MOST_WORDS = 500; // rows

// Each word, its shares in ascending order, and how many of these are hardly any; words said without looking first.
function wordsSaid() {
  const words = data.classes.map(({ name }, value) => ({ name, value, shares: [], unlooked: 0 }));
  for (const map of data.images.flatMap((image) => image.outcomes).flatMap((outcome) => outcome.maps)) {
    words[map.class].shares.push(map.mass);
    words[map.class].unlooked += Number(map.evidence === "hardly any");
  }
  for (const { shares } of words) shares.sort((a, b) => a - b);
  return words.sort((a, b) => b.unlooked - a.unlooked || b.shares.length - a.shares.length || collator.compare(a.name, b.name));
}

// A stroke for each share, from 0 at the left to 1 at the right.
function strokes(shares) {
  const canvas = element("canvas", { width: 160, height: 14, role: "img", "aria-label": `shares from ${number(shares[0])} to ${number(shares.at(-1))}` });
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).accentColor;
  context.globalAlpha = Math.max(0.15, 1 / Math.sqrt(shares.length));
  for (const share of shares) context.fillRect(share * 157, 0, 3, 14);
  return canvas;
}

function wordTable(choose) {
  const words = wordsSaid();
  const names = ["word", "times said", "shares, 0 to 1", "lowest", "median", "hardly any evidence"];
  const heading = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const table = element("table", {}, heading);
  for (const { name, value, shares, unlooked } of words.slice(0, MOST_WORDS)) {
    const button = element("button", { type: "button", class: "link" }, name);
    button.addEventListener("click", () => choose(value));
    const numbers = [number(shares[0]), number(shares[shares.length >> 1]), unlooked.toLocaleString("en")];
    const cells = [shares.length.toLocaleString("en"), strokes(shares), ...numbers].map((cell) => element("td", {}, cell));
    table.append(element("tr", {}, element("th", { scope: "row" }, button), ...cells));
  }
  let note = "Select a word to see all answers that say it, the one with the smallest share of the picture first.";
  if (words.length > MOST_WORDS) note += ` These are the first ${MOST_WORDS} of ${words.length} words.`;
  return [element("p", {}, note), element("div", { class: "scroll" }, table)];
}

// The question and the answer, with the word of a map marked; spans count characters, as Python does.
function answerOf(outcome, map) {
  const characters = [...outcome.answer];
  const [start, end] = map?.span ?? [0, 0];
  const text = (from, to) => characters.slice(from, to).join("");
  const marked = [text(0, start).trimStart(), element("mark", {}, text(start, end)), text(end)];
  return [element("small", {}, outcome.question), element("p", {}, ...marked)];
}
