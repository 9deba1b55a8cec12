"use strict";
// Unpacks the patterns of all heads, shows those that are chosen, puts words in order, and reads out what is pointed at.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = (packed) => Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  const inflated = (packed) =>
    new Response(new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  const tokensOf = { queries: data.queries, keys: data.keys || data.queries };
  const [n, m] = [tokensOf.queries.words.length, tokensOf.keys.words.length];

  const unpacked = new Uint8Array(await inflated(data.packed));
  const part = (number) => unpacked.subarray(number * n * m, (number + 1) * n * m);
  const relations = { token: part(0), word: part(1) };
  const masks = Array.from({ length: data.nMasks }, (_, at) => part(2 + at));
  // How many tokens each query may see: attention times this is 1 where it makes no difference between them.
  const seen = masks.map((mask) =>
    Array.from({ length: n }, (_, row) => mask.subarray(row * m, (row + 1) * m).reduce((a, b) => a + b, 0)));
  const patterns = new Map();

  function patternOf(at) {
    if (!patterns.has(at)) {
      // Steps of the root, up to the highest.
      const { highest } = data.heads[at];
      patterns.set(at, Float32Array.from(part(2 + masks.length + at), (step) => highest * (step / data.steps) ** 2));
    }
    return patterns.get(at);
  }

  const RELATIONS = ["no relation", "same word", "same topic", "different topic"];
  const HIDDEN = hatched();
  const INK = [16, 20, 38];

  const form = document.querySelector(".controls");
  const place = document.querySelector(".heads");
  const grid = document.querySelector(".grid");
  const buttons = [...grid.querySelectorAll("button")];
  const nothing = document.querySelector(".none-chosen");
  let cards = [];
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  // What a mask hides is hatched: any grey would be a value.
  function hatched() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const context = tile.getContext("2d");
    context.fillStyle = "#f4f4f6";
    context.fillRect(0, 0, 6, 6);
    context.strokeStyle = "#b9bcc6";
    for (const shift of [-6, 0, 6]) {
      context.moveTo(shift, 6);
      context.lineTo(shift + 6, 0);
    }
    context.stroke();
    return context.createPattern(tile, "repeat");
  }

  // ---- tokens, or the words that they are pieces of

  function unitsOf(tokens, level) {
    const members = [];
    tokens.words.forEach((_, at) => {
      if (level === "word" && tokens.continues[at]) members.at(-1).push(at);
      else members.push([at]);
    });
    const topics = level === "word" ? tokens.wordTopics : tokens.topics;
    return members.map((own) => ({
      members: own,
      word: (level === "word" ? tokens.inWords : tokens.words)[own[0]],
      topics: topics[own[0]],
      special: tokens.special[own[0]],
    }));
  }

  let level = "token";
  let queries = [];
  let keys = [];
  let rows = [];
  let columns = [];

  // ---- words in order

  const rank = (unit) => unit.topics.length ? unit.topics[0] : unit.special ? Infinity : 1e9;

  function arranged(units) {
    const all = units.map((_, at) => at);
    const kept = form.only.checked ? all.filter((at) => units[at].topics.length) : all;
    if (form.order.value === "topic") {
      kept.sort((one, other) => {
        const [a, b] = [rank(units[one]), rank(units[other])];
        if (a !== b) return a < b ? -1 : 1;
        // Repetitions of a word stand together where words have topics; the rest keeps the order of the text.
        const [word, next] = [units[one].word, units[other].word];
        return a < 1e9 && word !== next ? (word < next ? -1 : 1) : one - other;
      });
    }
    return kept;
  }

  function order() {
    level = form.level.value;
    queries = unitsOf(tokensOf.queries, level);
    keys = data.keys ? unitsOf(tokensOf.keys, level) : queries;
    rows = arranged(queries);
    columns = data.keys ? arranged(keys) : rows;
    topicsOfCells = new Map();
    for (const card of cards) card.cursor = null;
    drawAll();
  }

  // ---- what is in a cell

  // Attention to a word is summed over its pieces, from a word averaged, and uniform attention is treated alike.
  function value(at, query, key) {
    const { mask } = data.heads[at];
    const pattern = patternOf(at);
    let [attention, uniform] = [0, 0];
    for (const row of queries[query].members) {
      for (const column of keys[key].members) {
        if (!masks[mask][row * m + column]) continue;
        attention += pattern[row * m + column];
        uniform += 1 / seen[mask][row];
      }
    }
    const visible = uniform > 0;
    return {
      visible,
      attention: attention / queries[query].members.length,
      relative: visible ? attention / uniform : 0,
      relation: visible ? relationOf(query, key) : 0,
    };
  }

  const relationOf = (query, key) => relations[level][queries[query].members[0] * m + keys[key].members[0]];

  const shade = (relative) => Math.min(1, Math.log1p(Math.max(0, relative)) / Math.log(11));
  const INKS = Array.from({ length: 256 }, (_, step) =>
    `rgb(${INK.map((part) => Math.round(255 + (part - 255) * step / 255)).join()})`);

  // The topic that the pair of every shown cell shares, -1 for none (forms of a word may share none), in the order of
  // rows and columns. Heads with the same mask have it in common.
  let topicsOfCells = new Map();

  function sharedTopics(at) {
    const { mask } = data.heads[at];
    if (topicsOfCells.has(mask)) return topicsOfCells.get(mask);
    const found = new Int32Array(rows.length * columns.length).fill(-1);
    rows.forEach((query, row) => columns.forEach((key, column) => {
      const kind = relationOf(query, key);
      if ((kind !== 1 && kind !== 2) || !value(at, query, key).visible) return;
      const common = queries[query].topics.find((topic) => keys[key].topics.includes(topic));
      if (common !== undefined) found[row * columns.length + column] = common;
    }));
    topicsOfCells.set(mask, found);
    return found;
  }

  // ---- drawing

  function measure(card) {
    const width = Math.max(120, card.canvas.clientWidth);
    const context = card.base.getContext("2d");
    context.font = "11px sans-serif";
    const longest = (units, places) =>
      Math.min(96, Math.max(0, ...places.map((at) => context.measureText(units[at].word).width)) + 8);
    const [left, top] = [longest(queries, rows), longest(keys, columns)];
    const strip = 7;
    let size = Math.min(36, (width - left - strip) / Math.max(1, columns.length));
    const labelled = size >= 9;
    if (!labelled) size = (width - strip) / Math.max(1, columns.length);
    const [x, y] = labelled ? [left + strip, top + strip] : [strip, strip];
    return { width, height: Math.ceil(y + size * rows.length) + 2, x, y, size, strip, labelled };
  }

  const colourOf = (unit) =>
    unit.topics.length ? data.topics[unit.topics[0]].colour : unit.special ? "#00000030" : "#00000012";

  function drawBase(card) {
    const box = (card.box = measure(card));
    const { x, y, size, strip } = box;
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [card.base, card.canvas]) {
      canvas.width = Math.round(box.width * ratio);
      canvas.height = Math.round(box.height * ratio);
    }
    card.canvas.style.height = `${box.height}px`;
    const context = card.base.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = "#fff";
    context.fillRect(0, 0, box.width, box.height);
    // Edges on whole device pixels, or a grid of gaps would be seen.
    const snap = (number) => Math.round(number * ratio) / ratio;
    const X = (column) => snap(x + column * size);
    const Y = (row) => snap(y + row * size);

    rows.forEach((query, row) => columns.forEach((key, column) => {
      const cell = value(card.at, query, key);
      const t = shade(cell.relative);
      context.fillStyle = cell.visible ? INKS[Math.round(t * 255)] : HIDDEN;
      context.fillRect(X(column), Y(row), X(column + 1) - X(column), Y(row + 1) - Y(row));
      if (cell.relation === 1 && size >= 6) {
        context.fillStyle = t > 0.5 ? "#fff" : "#000";
        context.beginPath();
        context.arc((X(column) + X(column + 1)) / 2, (Y(row) + Y(row + 1)) / 2, Math.min(2, size * 0.12), 0, 7);
        context.fill();
      }
    }));

    let outlined = 0;
    const shared = sharedTopics(card.at);
    const region = (row, column) =>
      row < 0 || column < 0 || row >= rows.length || column >= columns.length ? -1 : shared[row * columns.length + column];
    const thick = size >= 9 ? 2.5 : size >= 4 ? 1.5 : 1;
    context.lineCap = "square";
    for (const [halo, wide] of [[true, thick + 1.5], [false, thick]]) {
      if (halo && size < 6) continue;
      rows.forEach((_, row) => columns.forEach((_, column) => {
        const own = region(row, column);
        if (own < 0) return;
        outlined += halo ? 0 : 1;
        const edges = [
          [row - 1, column, X(column), Y(row), X(column + 1), Y(row)],
          [row + 1, column, X(column), Y(row + 1), X(column + 1), Y(row + 1)],
          [row, column - 1, X(column), Y(row), X(column), Y(row + 1)],
          [row, column + 1, X(column + 1), Y(row), X(column + 1), Y(row + 1)],
        ];
        context.strokeStyle = halo ? "#fff" : data.topics[own].colour;
        context.lineWidth = wide;
        for (const [otherRow, otherColumn, ...line] of edges) {
          if (region(otherRow, otherColumn) === own) continue;
          context.beginPath();
          context.moveTo(line[0], line[1]);
          context.lineTo(line[2], line[3]);
          context.stroke();
        }
      }));
    }
    rows.forEach((query, row) => {
      context.fillStyle = colourOf(queries[query]);
      context.fillRect(x - strip, Y(row), strip - 2, Y(row + 1) - Y(row));
    });
    columns.forEach((key, column) => {
      context.fillStyle = colourOf(keys[key]);
      context.fillRect(X(column), y - strip, X(column + 1) - X(column), strip - 2);
    });
    if (box.labelled) drawLabels(context, box, X, Y);
    card.canvas.dataset.cells = String(rows.length * columns.length);
    card.canvas.dataset.outlined = String(outlined);
  }

  function drawLabels(context, { x, y, size, strip }, X, Y) {
    context.font = `${Math.min(11, size)}px sans-serif`;
    context.fillStyle = "#333";
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((query, row) =>
      context.fillText(short(queries[query].word), x - strip - 3, (Y(row) + Y(row + 1)) / 2));
    context.textAlign = "left";
    columns.forEach((key, column) => {
      context.save();
      context.translate((X(column) + X(column + 1)) / 2, y - strip - 3);
      context.rotate(-Math.PI / 2);
      context.fillText(short(keys[key].word), 0, 0);
      context.restore();
    });
  }

  // A character that would turn the writing around is left out where it cannot be isolated.
  const straight = (word) => word.replace(/[\u202a-\u202e\u2066-\u2069]/g, "");
  const short = (word) => [...straight(word)].slice(0, 16).join("");
  // A word that runs from right to left is isolated, so that what follows stays where it is.
  const isolated = (word) =>
    /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(word) ? `\u2068${straight(word)}\u2069` : straight(word);

  function draw(card) {
    const context = card.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(card.base, 0, 0);
    if (!card.cursor) return;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { x, y, size } = card.box;
    const [row, column] = card.cursor;
    context.fillStyle = "rgba(255, 140, 0, 0.16)";
    if (row >= 0) context.fillRect(0, y + row * size, card.box.width, size);
    if (column >= 0) context.fillRect(x + column * size, 0, size, card.box.height);
    if (row < 0 || column < 0) return;
    context.strokeStyle = "#e06c00";
    context.lineWidth = 2;
    context.strokeRect(x + column * size, y + row * size, size, size);
  }

  function drawAll() {
    for (const card of cards) {
      drawBase(card);
      draw(card);
    }
    document.documentElement.dataset.drawn = String(cards.length);
  }

  // ---- reading values

  const digits = (number, many) =>
    number === null ? "–" : number === 0 ? "0" : Number(number.toPrecision(many)).toString().replace("-", "−");
  const named = (unit) => `${isolated(unit.word) || "␣"} (${unit.members.join("–")})`;

  function described(card, query, key) {
    const cell = value(card.at, query, key);
    const labels = queries[query].topics.filter((topic) => keys[key].topics.includes(topic));
    const about = labels.length ? ` (${labels.map((topic) => data.topics[topic].label).join(", ")})` : "";
    const pair = `${named(queries[query])} → ${named(keys[key])}`;
    if (!cell.visible) return [pair, "hidden by the mask"];
    return [
      pair,
      RELATIONS[cell.relation] + (cell.relation === 1 || cell.relation === 2 ? about : ""),
      `${digits(cell.relative, 3)} × uniform`,
      `attention ${digits(cell.attention, 3)}`,
    ];
  }

  function mark(query, key) {
    for (const word of document.querySelectorAll(".w.query, .w.key")) word.classList.remove("query", "key");
    const add = (side, unit, name) => {
      for (const at of unit.members) {
        document.querySelector(`[data-side="${side}"] [data-at="${at}"]`)?.classList.add(name);
      }
    };
    if (query !== undefined) add(data.keys ? "queries" : "keys", queries[query], "query");
    if (key !== undefined) add("keys", keys[key], "key");
  }

  function point(card, row, column) {
    card.cursor = [row, column];
    const lines = described(card, rows[row], columns[column]);
    card.output.textContent = lines.join(" · ");
    mark(rows[row], columns[column]);
    draw(card);
    return lines;
  }

  function leave(card) {
    card.cursor = null;
    card.output.textContent = "";
    tip.hidden = true;
    mark();
    draw(card);
  }

  function listen(card) {
    card.canvas.addEventListener("pointermove", (event) => {
      const { x, y, size } = card.box;
      const [column, row] = [Math.floor((event.offsetX - x) / size), Math.floor((event.offsetY - y) / size)];
      if (row < 0 || column < 0 || row >= rows.length || column >= columns.length) return leave(card);
      tip.replaceChildren(...point(card, row, column).map((line) => {
        const shown = document.createElement("div");
        shown.textContent = line;
        return shown;
      }));
      tip.hidden = false;
      const right = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(4, right)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
    });
    card.canvas.addEventListener("pointerleave", () => leave(card));
    card.canvas.addEventListener("blur", () => leave(card));
    card.canvas.addEventListener("focus", () => {
      if (!card.cursor && rows.length && columns.length && card.canvas.matches(":focus-visible")) point(card, 0, 0);
    });
    card.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.key === "Escape") leave(card);
      if (!step || !rows.length || !columns.length) return;
      event.preventDefault();
      const [row, column] = card.cursor || [-step[0], -step[1]];
      const within = (number, count) => Math.max(0, Math.min(count - 1, number));
      point(card, within(row + step[0], rows.length), within(column + step[1], columns.length));
    });
  }

  // ---- heads that are shown

  function cardOf(at) {
    const head = data.heads[at];
    const article = document.getElementById("card").content.firstElementChild.cloneNode(true);
    const find = (selector) => article.querySelector(selector);
    article.dataset.head = head.name;
    find(".label").textContent = head.name;
    for (const name of ["effect", "ratio"]) {
      find(`.of-${name}`).textContent = digits(head[name], 4);
      find(`.of-${name}`).parentElement.title += head[name] === null ? "" : `: ${head[name]}`;
    }
    const largest = Math.max(0, ...head.means);
    head.means.forEach((mean, number) => {
      const row = article.querySelectorAll("tbody tr")[number];
      row.querySelector("i").style.width = `${mean > 0 ? (100 * mean / largest).toFixed(1) : 0}%`;
      row.querySelector(".mean").textContent = digits(mean, 4);
      row.querySelector(".count").textContent = head.pairs[number].toLocaleString("en");
    });
    find(".reason").textContent = head.reason || "";
    const button = buttons.find((one) => one.dataset.name === head.name);
    const report = button.dataset.report;
    find(".says").textContent = report || "";
    find("canvas").setAttribute("aria-label", `Attention pattern of ${head.name}; arrow keys read its cells`);
    find(".close").setAttribute("aria-label", `Take ${head.name} away`);
    find(".close").addEventListener("click", () => {
      toggle(head.name);
      button.focus();
    });
    const card = {
      at,
      name: head.name,
      article,
      canvas: find("canvas"),
      output: find("output"),
      base: document.createElement("canvas"),
      cursor: null,
    };
    listen(card);
    return card;
  }

  // A head, and what becomes of it after a cut, stand together; what was chosen last stands first.
  function toggle(name, last = false) {
    const button = buttons.find((one) => one.dataset.name === name);
    const shown = cards.some((card) => card.name === name);
    if (shown) {
      for (const card of cards.filter((one) => one.name === name)) card.article.remove();
      cards = cards.filter((one) => one.name !== name);
    } else {
      const own = data.heads.flatMap((head, at) => head.name === name ? [cardOf(at)] : []);
      place[last ? "append" : "prepend"](...own.map((card) => card.article));
      cards = last ? [...cards, ...own] : [...own, ...cards];
      if (!last) for (const card of own) {
        drawBase(card);
        draw(card);
      }
    }
    button.setAttribute("aria-pressed", String(!shown));
    nothing.hidden = cards.length > 0;
    document.documentElement.dataset.drawn = String(cards.length);
    if (!last) drawCircuits();
  }

  // ---- the grid: one stop of the tabulator, arrow keys within

  const says = document.querySelector(".grid-says");

  function lead(button) {
    for (const one of buttons) one.tabIndex = one === button ? 0 : -1;
  }

  for (const button of buttons) {
    const tell = () => { says.textContent = button.title; };
    button.addEventListener("pointerenter", tell);
    button.addEventListener("focus", () => {
      lead(button);
      tell();
    });
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-disabled") !== "true") toggle(button.dataset.name);
    });
  }
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const here = event.target.closest("button");
    if (!step || !here) return;
    event.preventDefault();
    const [layer, head] = [here.dataset.row, here.dataset.column].map(Number);
    buttons.find((one) =>
      Number(one.dataset.row) === layer + step[0] && Number(one.dataset.column) === head + step[1])?.focus();
  });
  for (const choice of document.querySelectorAll("[name=evidence]")) {
    choice.addEventListener("change", () => { grid.dataset.by = choice.value; });
  }

  // ---- the same heads by circuitsvis, in colours of its own

  const aside = document.getElementById("circuitsvis");

  let library = null;
  let turns = 0;

  async function loadLibrary() {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await inflated(document.getElementById("library").textContent));
    document.body.append(script);
  }

  async function drawCircuits() {
    if (!aside || !form.circuitsvis.checked) return;
    const turn = ++turns;
    library ??= loadLibrary();
    await library;
    if (turn !== turns) return; // another head was chosen meanwhile
    const shown = cards.slice(0, data.circuitsvis.heads);
    const count = Math.min(n, data.circuitsvis.tokens);
    const size = [...Array(count).keys()];
    const square = document.createElement("div");
    square.id = "circuits";
    aside.querySelector(".white").replaceChildren(square);
    aside.querySelector("p").textContent = shown.length
      ? `${shown.map((card) => data.heads[card.at].name).join(", ")}; ${count < n ? `the first ${count} tokens (more would freeze the browser)` : "every token"}, in the order of the text`
      : "No head is chosen.";
    if (!shown.length) return;
    window.CircuitsVis.render("circuits", window.CircuitsVis.AttentionHeads, {
      attention: shown.map(({ at }) => size.map((row) => size.map((column) => patternOf(at)[row * m + column]))),
      attentionHeadNames: shown.map((card) => data.heads[card.at].name),
      tokens: data.queries.words.slice(0, count),
      // circuitsvis hides the upper triangle unless told otherwise, which is half of what a bidirectional model does.
      maskUpperTri: shown.every(({ at }) => size.every((row) =>
        size.every((column) => column <= row || !masks[data.heads[at].mask][row * m + column]))) && count > 1,
    });
  }

  // ---- pointing at a word of the text shows its row and its column in every pattern

  for (const word of document.querySelectorAll(".w")) {
    const at = Number(word.dataset.at);
    const { side } = word.closest("[data-side]").dataset;
    const find = (units, places) => places.findIndex((unit) => units[unit].members.includes(at));
    const show = (on) => {
      const row = data.keys && side === "keys" ? -1 : find(queries, rows);
      const column = side === "keys" ? find(keys, columns) : -1;
      for (const card of cards) {
        card.cursor = on ? [row, column] : null;
        draw(card);
      }
    };
    word.addEventListener("pointerenter", () => show(true));
    word.addEventListener("pointerleave", () => show(false));
  }

  for (const name of data.first) toggle(name, true);
  form.addEventListener("change", (event) => {
    if (event.target.name !== "circuitsvis") return order();
    aside.hidden = !form.circuitsvis.checked;
    return drawCircuits();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  lead(buttons.find((one) => one.dataset.name === data.first[0]));
  order();
  const widthOf = () => cards.length ? cards[0].canvas.clientWidth : 0;
  let width = widthOf();
  new ResizeObserver(() => {
    if (widthOf() === width) return;
    width = widthOf();
    requestAnimationFrame(drawAll); // drawing changes heights, which must not happen while sizes are being observed
  }).observe(place);
})().catch((error) => {
  document.querySelector(".too-old").hidden = false;
  throw error;
});
