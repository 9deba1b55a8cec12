"use strict";
// Shows the heads that are chosen, puts words in order, and reads out what is pointed at.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { queries, keys } = data;
  const [n, m] = [queries.words.length, keys.words.length];
  const RELATIONS = ["no relation", "same word", "same topic", "different topic"];
  const [HIDDEN, STRIP, LABELLED] = [255, 7, 60];

  const form = document.querySelector(".controls");
  const place = document.querySelector(".heads");
  const grid = document.querySelector(".grid");
  const buttons = [...grid.querySelectorAll("button")];
  const buttonOf = (name) => buttons.find((one) => one.dataset.name === name);
  let cards = [];
  let rows = [];
  let columns = [];

  // ---- words in order

  function arranged(tokens) {
    const rank = (at) => tokens.topics[at].length ? tokens.topics[at][0] : tokens.special[at] ? Infinity : 1e9;
    const all = tokens.words.map((_, at) => at);
    const kept = form.only?.checked ? all.filter((at) => tokens.topics[at].length) : all;
    if (form.order.value === "position") return kept;
    // Repetitions of a word stand together where words have topics; the rest keeps the order of the text.
    const word = (at) => tokens.topics[at].length ? tokens.words[at] : "";
    return kept.sort((a, b) =>
      rank(a) !== rank(b) ? (rank(a) < rank(b) ? -1 : 1) : word(a) !== word(b) ? (word(a) < word(b) ? -1 : 1) : a - b);
  }

  // ---- what is in a cell

  function patternOf(head) {
    head.bytes ??= Uint8Array.from(atob(head.pattern), (one) => one.charCodeAt(0));
    return head.bytes;
  }
  const timesOf = (byte) => data.most * (byte / (HIDDEN - 1)) ** 2;
  const relationOf = (query, key) => Number(data.relation[query * m + key]);
  const shared = (query, key) => queries.topics[query].filter((topic) => keys.topics[key].includes(topic));

  function inkOf(byte) {
    if (byte === HIDDEN) return "#f3e3c8";
    const share = Math.min(1, Math.log1p(timesOf(byte)) / Math.log(11));
    return `rgb(${[16, 20, 38].map((part) => Math.round(255 + (part - 255) * share)).join()})`;
  }
  const INKS = Array.from({ length: 256 }, (_, byte) => inkOf(byte));

  // ---- drawing

  function measure(card) {
    const context = card.canvas.getContext("2d");
    context.font = "11px sans-serif";
    const longest = (words, places) => Math.min(96, 8 + Math.max(0, ...places.map((at) => context.measureText(words[at]).width)));
    const labelled = Math.max(rows.length, columns.length) <= LABELLED;
    const x = STRIP + (labelled ? longest(queries.words, rows) : 0);
    const y = STRIP + (labelled ? longest(keys.words, columns) : 0);
    const room = (card.wrap.clientWidth - x) / Math.max(1, columns.length);
    // Labels need 9 pixels a word; what is wider than the card can be scrolled.
    const size = Math.min(34, Math.max(labelled ? 9 : 2, Math.floor(room)));
    return { x, y, size, labelled, width: x + size * columns.length + 1, height: y + size * rows.length + 1 };
  }

  function draw(card) {
    if (!card.head.pattern) return;
    const { x, y, size, labelled, width, height } = (card.box = measure(card));
    const ratio = window.devicePixelRatio || 1;
    Object.assign(card.canvas, { width: width * ratio, height: height * ratio });
    Object.assign(card.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = card.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const pattern = patternOf(card.head);
    rows.forEach((query, row) => columns.forEach((key, column) => {
      const byte = pattern[query * m + key];
      context.fillStyle = INKS[byte];
      context.fillRect(x + column * size, y + row * size, size, size);
      if (relationOf(query, key) === 1 && byte !== HIDDEN && size >= 6) {
        context.fillStyle = timesOf(byte) > 2 ? "#fff" : "#000";
        context.fillRect(x + (column + 0.5) * size - 1, y + (row + 0.5) * size - 1, 2, 2);
      }
    }));
    frame(context, card.box, pattern);
    rows.forEach((query, row) => strip(context, queries, query, x - STRIP, y + row * size, STRIP - 2, size));
    columns.forEach((key, column) => strip(context, keys, key, x + column * size, y - STRIP, size, STRIP - 2));
    if (labelled) label(context, card.box);
    card.canvas.dataset.cells = String(rows.length * columns.length);
  }

  function strip(context, tokens, at, ...box) {
    const [topic] = tokens.topics[at];
    context.fillStyle = topic === undefined ? "#0000001a" : data.topics[topic].colour;
    context.fillRect(...box);
  }

  // Edges between pairs that share a topic and pairs that do not.
  function frame(context, { x, y, size }, pattern) {
    const region = (row, column) => {
      const [query, key] = [rows[row], columns[column]];
      if (query === undefined || key === undefined || pattern[query * m + key] === HIDDEN) return undefined;
      return [1, 2].includes(relationOf(query, key)) ? shared(query, key)[0] : undefined;
    };
    context.lineWidth = size >= 9 ? 2.5 : size >= 4 ? 1.5 : 1;
    rows.forEach((_, row) => columns.forEach((_, column) => {
      const own = region(row, column);
      if (own === undefined) return;
      const [left, top, right, bottom] = [x + column * size, y + row * size, x + (column + 1) * size, y + (row + 1) * size];
      context.strokeStyle = data.topics[own].colour;
      context.beginPath();
      for (const [down, along, ...line] of [
        [-1, 0, left, top, right, top], [1, 0, left, bottom, right, bottom],
        [0, -1, left, top, left, bottom], [0, 1, right, top, right, bottom],
      ]) {
        if (region(row + down, column + along) === own) continue;
        context.moveTo(line[0], line[1]);
        context.lineTo(line[2], line[3]);
      }
      context.stroke();
    }));
  }

  // A character that would turn the writing around is left out: on a canvas it cannot be isolated.
  const straight = (word) => word.replace(/[\u202a-\u202e\u2066-\u2069]/g, "");
  const short = (word) => [...straight(word)].slice(0, 16).join("");

  function label(context, { x, y, size }) {
    context.font = `${Math.min(11, size)}px sans-serif`;
    context.fillStyle = "#333";
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((query, row) => context.fillText(short(queries.words[query]), x - STRIP - 3, y + (row + 0.5) * size));
    context.textAlign = "left";
    columns.forEach((key, column) => {
      context.save();
      context.translate(x + (column + 0.5) * size, y - STRIP - 3);
      context.rotate(-Math.PI / 2);
      context.fillText(short(keys.words[key]), 0, 0);
      context.restore();
    });
  }

  function order() {
    rows = arranged(queries);
    columns = data.same ? rows : arranged(keys);
    // Cards are so wide that labels have room.
    place.style.setProperty("--least", `${columns.length > LABELLED ? 560 : Math.max(380, 130 + 9 * columns.length)}px`);
    for (const card of cards) {
      draw(card);
      cross(card, -1, -1);
    }
  }

  // ---- reading values

  function cross(card, row, column) {
    card.cursor = [row, column];
    if (!card.box) return;
    const { x, y, size, width, height } = card.box;
    const [across, down] = card.wrap.querySelectorAll("i");
    across.hidden = row < 0;
    down.hidden = column < 0;
    Object.assign(across.style, { top: `${y + row * size}px`, width: `${width}px`, height: `${size}px` });
    Object.assign(down.style, { left: `${x + column * size}px`, width: `${size}px`, height: `${height}px` });
  }

  function point(card, row, column) {
    cross(card, row, column);
    const [query, key] = [rows[row], columns[column]];
    const byte = patternOf(card.head)[query * m + key];
    const times = byte === HIDDEN - 1 ? `≥ ${data.most}` : digits(timesOf(byte), 2);
    const topics = shared(query, key).map((topic) => data.topics[topic].label).join(", ");
    const told = [`${straight(queries.words[query])} (${query}) → ${straight(keys.words[key])} (${key})`];
    if (byte === HIDDEN) told.push("hidden by the mask");
    else told.push(RELATIONS[relationOf(query, key)] + (topics ? ` (${topics})` : ""), `${times} × uniform`);
    card.output.textContent = told.join(" · ");
    for (const word of document.querySelectorAll(".w.query, .w.key")) word.classList.remove("query", "key");
    wordAt(data.same ? "keys" : "queries", query)?.classList.add("query");
    wordAt("keys", key)?.classList.add("key");
  }
  const wordAt = (side, at) => document.querySelector(`[data-side="${side}"] [data-at="${at}"]`);
  const digits = (value, many) => value === null ? "–" : Number(value.toPrecision(many)).toString();

  function listen(card) {
    const { canvas } = card;
    const within = (at, length) => Math.min(length - 1, Math.max(0, at));
    canvas.addEventListener("pointermove", (event) => {
      const { x, y, size } = card.box;
      const [row, column] = [Math.floor((event.offsetY - y) / size), Math.floor((event.offsetX - x) / size)];
      if (row >= 0 && column >= 0 && row < rows.length && column < columns.length) point(card, row, column);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step || !rows.length || !columns.length) return;
      event.preventDefault();
      const [row, column] = card.cursor.some((at) => at < 0) ? [-step[0], -step[1]] : card.cursor;
      point(card, within(row + step[0], rows.length), within(column + step[1], columns.length));
    });
  }
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  // ---- a card for every head that is shown

  function cardOf(head) {
    const article = document.getElementById("card").content.firstElementChild.cloneNode(true);
    const find = (selector) => article.querySelector(selector);
    find(".name").textContent = head.name;
    find(".of-effect").textContent = head.effect;
    find(".of-ratio").textContent = head.ratio;
    const largest = Math.max(1.1, ...head.means);
    find(".means").style.setProperty("--one", `${100 / largest}%`);
    article.querySelectorAll("tbody tr").forEach((row, at) => {
      row.querySelector("i").style.width = `${100 * (head.means[at] ?? 0) / largest}%`;
      row.querySelector(".mean").textContent = digits(head.means[at], 3);
      row.querySelector(".count").textContent = head.pairs[at].toLocaleString("en");
    });
    const card = { head, article, canvas: find("canvas"), wrap: find(".pattern"), output: find("output"), cursor: [-1, -1] };
    card.canvas.setAttribute("aria-label", `Attention pattern of ${head.name}; arrow keys read its cells`);
    find(".close").setAttribute("aria-label", `Take ${head.name} away`);
    find(".close").addEventListener("click", () => {
      toggle(head.name);
      buttonOf(head.name).focus();
    });
    if (head.pattern) listen(card);
    else {
      card.wrap.hidden = true;
      card.output.textContent = "The pattern of this head is not in this page: name it when the page is made.";
    }
    return card;
  }

  // What was chosen last stands first.
  function toggle(name) {
    const shown = cards.find((card) => card.head.name === name);
    buttonOf(name).setAttribute("aria-pressed", String(!shown));
    if (shown) {
      shown.article.remove();
      cards = cards.filter((card) => card !== shown);
    } else {
      const card = cardOf(data.heads.find((head) => head.name === name));
      place.prepend(card.article);
      cards.unshift(card);
      draw(card);
      cross(card, -1, -1);
    }
    document.querySelector(".none-chosen").hidden = cards.length > 0;
    document.documentElement.dataset.drawn = String(cards.length);
  }

  // ---- the map: one stop of the tabulator, arrow keys within

  const lead = (button) => {
    for (const one of buttons) one.tabIndex = one === button ? 0 : -1;
  };
  const told = document.querySelector(".told");
  for (const button of buttons) {
    const tell = () => { told.textContent = button.getAttribute("aria-label"); };
    button.addEventListener("pointerenter", tell);
    button.addEventListener("focus", () => {
      lead(button);
      tell();
    });
    button.addEventListener("click", () => toggle(button.dataset.name));
  }
  grid.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const cell = event.target.closest("td");
    if (!step || !cell) return;
    event.preventDefault();
    const row = grid.tBodies[0].rows[cell.parentElement.sectionRowIndex + step[0]];
    row?.cells[cell.cellIndex + step[1]]?.querySelector("button")?.focus();
  });

  // ---- pointing at a word of the text shows its row and its column in every pattern

  for (const word of document.querySelectorAll(".w")) {
    const at = Number(word.dataset.at);
    const { side } = word.closest("[data-side]").dataset;
    const show = (on) => {
      const row = on && (data.same || side === "queries") ? rows.indexOf(at) : -1;
      const column = on && side === "keys" ? columns.indexOf(at) : -1;
      for (const card of cards) cross(card, row, column);
    };
    word.addEventListener("pointerenter", () => show(true));
    word.addEventListener("pointerleave", () => show(false));
  }

  order();
  for (const name of [...data.first].reverse()) toggle(name);
  form.addEventListener("change", order);
  form.addEventListener("submit", (event) => event.preventDefault());
  lead(buttonOf(data.first[0]) ?? buttons[0]);
  let { clientWidth } = place;
  new ResizeObserver(() => {
    if (place.clientWidth === clientWidth) return;
    ({ clientWidth } = place);
    requestAnimationFrame(order); // drawing changes heights, which must not happen while sizes are being observed
  }).observe(place);
})();
