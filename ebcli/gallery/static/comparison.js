"use strict";

const articles = [...document.querySelectorAll("article")];
const count = document.getElementById("count");

function filter(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  for (const article of articles) {
    const text = article.querySelector("h2").textContent.toLowerCase();
    article.hidden = !words.every((word) => text.includes(word));
  }
  count.textContent = `${articles.filter((article) => !article.hidden).length} of ${articles.length} pairs`;
}

document.getElementById("query").addEventListener("input", ({ target }) => filter(target.value));
filter("");
