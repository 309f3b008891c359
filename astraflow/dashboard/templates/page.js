"use strict";

// Charts. `data-drawn` on each place, and `data-ready` on the document, tell that everything is on the screen.
const places = [...document.querySelectorAll("[data-chart]")];
const drawn = places.map(async (place) => {
  const item = JSON.parse(document.getElementById(`data-${place.dataset.chart}`).textContent);
  await Bokeh.embed.embed_item(item, place);
  place.dataset.drawn = "yes";
});

// Episodes: texts of a run are set as text, never as markup.
const data = document.getElementById("data-episodes");
const episodes = data ? JSON.parse(data.textContent) : [];
const AGES = ["#dcfce7", "#fef9c3", "#fed7aa", "#fecaca", "#e9d5ff"];
const PROMPT = "#f1f5f9";

const gapsOf = (episode) => episode.gaps.filter((gap) => gap !== null).map(Math.abs);
const allGaps = episodes.flatMap(gapsOf).sort((a, b) => a - b);
// colours are full at the 98th percentile, so that one odd token does not wash out the rest
const fullGap = Math.max(allGaps[Math.floor(0.98 * (allGaps.length - 1))] || 0, 1e-4);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function age(episode, index) {
  return Math.max(0, episode.step - 1 - episode.versions[index]);
}

const COLOURINGS = {
  mask: (episode, index) => (episode.mask[index] ? "#bfdbfe" : PROMPT),
  version: (episode, index) => (episode.mask[index] ? AGES[Math.min(age(episode, index), AGES.length - 1)] : PROMPT),
  gap: (episode, index) => {
    const gap = episode.gaps[index];
    if (gap === null) return PROMPT;
    const strength = Math.min(1, Math.sqrt(Math.abs(gap) / fullGap));
    return gap < 0 ? `rgb(37 99 235 / ${0.08 + 0.5 * strength})` : `rgb(220 38 38 / ${0.08 + 0.5 * strength})`;
  },
};

const KEYS = {
  mask: [["#bfdbfe", "sampled by the policy, trained on"], [PROMPT, "prompt or tool text"]],
  version: [...AGES.map((colour, n) => [colour, n === 0 ? "newest version" : `${n}${n === 4 ? " or more" : ""} behind`])],
  gap: [
    ["rgb(37 99 235 / 58%)", `trainer less likely (≤ −${fullGap.toPrecision(2)})`],
    ["rgb(148 163 184 / 15%)", "equal"],
    ["rgb(220 38 38 / 58%)", `trainer more likely (≥ ${fullGap.toPrecision(2)})`],
    [PROMPT, "not trained on"],
  ],
};

function tooltip(episode, index) {
  if (!episode.mask[index]) return "not sampled";
  const gap = episode.gaps[index];
  return `version ${episode.versions[index]}` + (gap === null ? "" : `, gap ${gap}`);
}

function card(episode) {
  const box = element("div", "card episode");
  box.dataset.outcome = episode.outcome;
  const head = element("div", "head");
  head.append(element("b", "", `step ${episode.step}`));
  head.append(element("span", episode.outcome === "trained" ? "tag trained" : "tag", episode.outcome.replaceAll("_", " ")));
  const reward = episode.reward === null ? "invalid" : String(+episode.reward.toFixed(4));
  head.append(element("span", "", `reward ${reward}, group mean ${+episode.group_mean.toFixed(3)}`));
  head.append(element("span", "", `${episode.sampled} sampled tokens, ended by ${episode.stop}`));
  const sampled = episode.versions.filter((_, i) => episode.mask[i]);
  const [low, high] = [Math.min(...sampled), Math.max(...sampled)];
  if (sampled.length) head.append(element("span", "", low === high ? `version ${low}` : `versions ${low} to ${high}`));
  const gaps = gapsOf(episode);
  if (gaps.length) head.append(element("span", "", `largest gap ${Math.max(...gaps).toPrecision(2)}`));
  head.append(element("span", "", `${episode.model} · task ${episode.task}`));
  const tokens = element("div", "tokens");
  episode.texts.forEach((text, index) => {
    if (episode.hidden && index === episode.hidden_at) tokens.append(element("span", "left-out", ` … ${episode.hidden} tokens left out … `));
    const token = element("span", "", text.replaceAll("\n", "⏎\n"));
    token.title = tooltip(episode, index);
    tokens.append(token);
  });
  box.append(head, tokens);
  return box;
}

function colour(by) {
  const key = document.getElementById("episode-key");
  key.replaceChildren(
    ...KEYS[by].map(([shade, text]) => {
      const entry = element("span");
      const box = element("i");
      box.style.background = shade;
      entry.append(box, text);
      return entry;
    }),
  );
  document.querySelectorAll(".episode").forEach((box, number) => {
    box.querySelectorAll(".tokens span:not(.left-out)").forEach((token, index) => {
      token.style.background = COLOURINGS[by](episodes[number], index);
    });
  });
  document.querySelectorAll("#colouring button").forEach((button) => button.classList.toggle("on", button.dataset.by === by));
}

if (data) {
  document.getElementById("episode-list").append(...episodes.map(card));
  const select = document.getElementById("outcome");
  for (const outcome of new Set(episodes.map((episode) => episode.outcome))) {
    const option = element("option", "", outcome.replaceAll("_", " "));
    option.value = outcome;
    select.append(option);
  }
  select.addEventListener("change", () => {
    document.querySelectorAll(".episode").forEach((box) => {
      box.hidden = select.value !== "" && box.dataset.outcome !== select.value;
    });
  });
  document.querySelectorAll("#colouring button").forEach((button) => {
    button.addEventListener("click", () => colour(button.dataset.by));
  });
  colour(allGaps.length ? "gap" : "mask");
}

Promise.all(drawn).then(() => {
  document.documentElement.dataset.ready = "yes";
});
