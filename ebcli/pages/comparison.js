"use strict";

const articles = [...document.querySelectorAll("article")];
const counter = part("count");

function filter(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  for (const article of articles) {
    const text = article.querySelector("h2").textContent.toLowerCase();
    article.hidden = !words.every((word) => text.includes(word));
  }
  counter.textContent = `${articles.filter((article) => !article.hidden).length} of ${articles.length} pairs`;
}

part("query").addEventListener("input", ({ target }) => filter(target.value));
filter("");
