"use strict";
// Draws the patterns of the heads, puts words in order, and reads out the values under the pointer.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = (packed) => Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  const queries = data.queries;
  const keys = data.keys || data.queries;
  const [n, m] = [queries.words.length, keys.words.length];
  const relation = bytes(data.relation);
  const masks = data.masks.map(bytes);
  // How many tokens each query may see: attention times this is 1 where it makes no difference between them.
  const seen = masks.map((mask) =>
    Array.from({ length: n }, (_, row) => mask.subarray(row * m, (row + 1) * m).reduce((a, b) => a + b, 0)));
  const patterns = data.heads.map((head) => new Float32Array(bytes(head.pattern).buffer));
  const RELATIONS = ["no relation", "same word", "same topic", "different topic"];
  const HIDDEN = hatched();
  const INK = [16, 20, 38];

  const form = document.querySelector(".controls");
  const cards = [...document.querySelectorAll(".card")].map((card) => ({
    canvas: card.querySelector("canvas"),
    output: card.querySelector("output"),
    head: Number(card.dataset.head),
    base: document.createElement("canvas"),
    cursor: null,
  }));
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

  // ---- words in order

  const rank = (side, at) => side.topics[at].length ? side.topics[at][0] : side.special[at] ? Infinity : 1e9;

  function arranged(side) {
    const all = side.words.map((_, at) => at);
    const kept = form.only.checked ? all.filter((at) => side.topics[at].length) : all;
    if (form.order.value === "topic") {
      kept.sort((one, other) => {
        const [a, b] = [rank(side, one), rank(side, other)];
        if (a !== b) return a < b ? -1 : 1;
        // Repetitions of a word stand together where words have topics; the rest keeps the order of the text.
        const [word, next] = [side.words[one], side.words[other]];
        return a < 1e9 && word !== next ? (word < next ? -1 : 1) : one - other;
      });
    }
    return kept;
  }

  let rows = [];
  let columns = [];

  function order() {
    rows = arranged(queries);
    columns = data.keys ? arranged(keys) : rows;
    topicsOfCells = new Map();
    for (const card of cards) card.cursor = null;
    drawAll();
  }

  // ---- drawing

  function value(card, query, key) {
    const head = data.heads[card.head];
    const visible = masks[head.mask][query * m + key] === 1;
    const attention = patterns[card.head][query * m + key];
    return {
      visible,
      attention,
      relative: attention * seen[head.mask][query],
      relation: visible ? relation[query * m + key] : 0,
    };
  }

  const shade = (relative) => Math.min(1, Math.log1p(Math.max(0, relative)) / Math.log(11));
  const INKS = Array.from({ length: 256 }, (_, step) =>
    `rgb(${INK.map((part) => Math.round(255 + (part - 255) * step / 255)).join()})`);

  // The topic that the pair of every shown cell shares, -1 for none (forms of a word may share none), in the order of
  // rows and columns. Heads with the same mask have it in common.
  let topicsOfCells = new Map();

  function sharedTopics(mask) {
    if (topicsOfCells.has(mask)) return topicsOfCells.get(mask);
    const found = new Int32Array(rows.length * columns.length).fill(-1);
    rows.forEach((query, row) => columns.forEach((key, column) => {
      const kind = relation[query * m + key];
      if ((kind !== 1 && kind !== 2) || !masks[mask][query * m + key]) return;
      found[row * columns.length + column] = queries.topics[query].find((topic) => keys.topics[key].includes(topic)) ?? -1;
    }));
    topicsOfCells.set(mask, found);
    return found;
  }

  function measure(card) {
    const width = Math.max(120, card.canvas.clientWidth);
    const context = card.base.getContext("2d");
    context.font = "11px sans-serif";
    const longest = (side, places) =>
      Math.min(96, Math.max(0, ...places.map((at) => context.measureText(side.words[at]).width)) + 8);
    const [left, top] = [longest(queries, rows), longest(keys, columns)];
    const strip = 7;
    let size = Math.min(36, (width - left - strip) / Math.max(1, columns.length));
    const labelled = size >= 9;
    if (!labelled) size = (width - strip) / Math.max(1, columns.length);
    const [x, y] = labelled ? [left + strip, top + strip] : [strip, strip];
    return { width, height: Math.ceil(y + size * rows.length) + 2, x, y, size, strip, labelled };
  }

  function colourOf(side, at) {
    return side.topics[at].length ? data.topics[side.topics[at][0]].colour : side.special[at] ? "#00000030" : "#00000012";
  }

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

    const { mask } = data.heads[card.head];
    rows.forEach((query, row) => columns.forEach((key, column) => {
      const at = query * m + key;
      const visible = masks[mask][at] === 1;
      const t = shade(patterns[card.head][at] * seen[mask][query]);
      context.fillStyle = visible ? INKS[Math.round(t * 255)] : HIDDEN;
      context.fillRect(X(column), Y(row), X(column + 1) - X(column), Y(row + 1) - Y(row));
      if (visible && relation[at] === 1 && size >= 6) {
        context.fillStyle = t > 0.5 ? "#fff" : "#000";
        context.beginPath();
        context.arc((X(column) + X(column + 1)) / 2, (Y(row) + Y(row + 1)) / 2, Math.min(2, size * 0.12), 0, 7);
        context.fill();
      }
    }));

    let outlined = 0;
    const shared = sharedTopics(mask);
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
      context.fillStyle = colourOf(queries, query);
      context.fillRect(x - strip, Y(row), strip - 2, Y(row + 1) - Y(row));
    });
    columns.forEach((key, column) => {
      context.fillStyle = colourOf(keys, key);
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
      context.fillText(short(queries.words[query]), x - strip - 3, (Y(row) + Y(row + 1)) / 2));
    context.textAlign = "left";
    columns.forEach((key, column) => {
      context.save();
      context.translate((X(column) + X(column + 1)) / 2, y - strip - 3);
      context.rotate(-Math.PI / 2);
      context.fillText(short(keys.words[key]), 0, 0);
      context.restore();
    });
  }

  // A character that would turn the writing around is left out where it cannot be isolated.
  const short = (word) => word.replace(/[\u202a-\u202e\u2066-\u2069]/g, "").slice(0, 16);

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

  const four = (number) => number === 0 ? "0" : Number(number.toPrecision(4)).toString();
  const named = (side, at) => `${side.words[at] || "␣"} (${at})`;

  function described(card, query, key) {
    const cell = value(card, query, key);
    const labels = queries.topics[query].filter((topic) => keys.topics[key].includes(topic));
    const about = labels.length ? ` (${labels.map((topic) => data.topics[topic].label).join(", ")})` : "";
    const pair = `${named(queries, query)} → ${named(keys, key)}`;
    if (!cell.visible) return [pair, "hidden by the mask"];
    return [
      pair,
      `attention ${four(cell.attention)}`,
      `${four(cell.relative)} × uniform`,
      RELATIONS[cell.relation] + (cell.relation === 1 || cell.relation === 2 ? about : ""),
    ];
  }

  function mark(query, key) {
    for (const word of document.querySelectorAll(".w.query, .w.key")) word.classList.remove("query", "key");
    const find = (side, at) => document.querySelector(`[data-side="${side}"] [data-at="${at}"]`);
    if (query !== undefined) find(data.keys ? "queries" : "keys", query)?.classList.add("query");
    if (key !== undefined) find("keys", key)?.classList.add("key");
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

  for (const card of cards) {
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

  // Pointing at a word of the text shows its row and its column in every pattern.
  for (const word of document.querySelectorAll(".w")) {
    const at = Number(word.dataset.at);
    const side = word.closest("[data-side]").dataset.side;
    const show = (on) => {
      const row = data.keys && side === "keys" ? -1 : rows.indexOf(at);
      const column = side === "keys" ? columns.indexOf(at) : -1;
      for (const card of cards) {
        card.cursor = on ? [row, column] : null;
        draw(card);
      }
    };
    word.addEventListener("pointerenter", () => show(true));
    word.addEventListener("pointerleave", () => show(false));
  }

  form.addEventListener("change", order);
  form.addEventListener("submit", (event) => event.preventDefault());
  order();
  let width = cards.length ? cards[0].canvas.clientWidth : 0;
  new ResizeObserver(() => {
    const now = cards.length ? cards[0].canvas.clientWidth : 0;
    if (now === width) return;
    width = now;
    requestAnimationFrame(drawAll); // drawing changes heights, which must not happen while sizes are being observed
  }).observe(document.querySelector(".heads"));
})();
