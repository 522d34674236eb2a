// The map of heads: recolours the table by the chosen quantity, says the value of the head that is pointed at, and
// lists all quantities of the head that is chosen. Every number and word comes from the data beside the table, and goes
// into the page as text. Nothing is computed here, and nothing is fetched.
(() => {
  "use strict";
  const figure = document.querySelector("figure.heads");
  const data = JSON.parse(figure.querySelector("script").textContent);
  const find = (selector) => figure.querySelector(selector);
  const tables = [...figure.querySelectorAll(".map table")];
  const controls = find(".controls");
  const readout = find(".readout");
  const detail = find(".detail");
  const chooseQuantity = find("[name=quantity]");
  const chooseLayer = find("[name=layer]");
  const chooseHead = find("[name=head]");
  const hint = "Point at a head to read its value; click it for all of its numbers. Arrow keys move.";
  const markClasses = { "−": " minus", "·": " doubt" };

  // One place for each cell, in the order of the numbers: panel by panel, layer by layer.
  const places = [];
  const placeOf = new Map();
  let rows = 0;
  data.panels.forEach((panel, p) => {
    const bodyRows = tables[p].tBodies[0].rows;
    panel.layers.forEach((layer, r) => {
      panel.heads.forEach((head, c) => {
        const cell = bodyRows[r].cells[c + 1];
        const place = { index: places.length, cell, panel: p, row: r, column: c, line: rows, layer, head };
        places.push(place);
        placeOf.set(cell, place);
      });
      rows += 1;
    });
  });

  // Lists stand in the data as one text each, and are taken apart when they are first needed.
  const split = new Map();
  const listOf = (quantity, name) => {
    const key = quantity.name + " " + name;
    if (!split.has(key)) {
      split.set(key, quantity[name].split(";"));
    }
    return split.get(key);
  };
  const textOf = (quantity, name, index) => listOf(quantity, name)[index] || "";
  const exists = (place) => data.quantities[0].shades[place.index] !== " ";

  let shown = data.quantities[0];
  let chosen = null;
  let stop = null;

  const nameOf = (place) => {
    const panel = data.panels[place.panel].name;
    return (panel ? panel + ", " : "") + "layer " + place.layer + ", head " + place.head;
  };

  const valueOf = (quantity, place) => {
    const value = textOf(quantity, "texts", place.index);
    const ends = textOf(quantity, "ends", place.index);
    if (value === "–") {
      return "not defined, or not measured";
    }
    return ends ? value + " " + ends : value;
  };

  const classOf = (quantity, place) => {
    const shade = quantity.shades[place.index];
    if (shade === " ") {
      return "none";
    }
    if (shade === "-") {
      return "undefined";
    }
    const mark = markClasses[quantity.marks[place.index]] || "";
    return (quantity.diverging ? "d" : "s") + data.digits.indexOf(shade) + mark;
  };

  // The name of a cell holds the text that is seen in it, so that it can be called by it.
  const labelOf = (quantity, place) => {
    const seen = textOf(quantity, "cells", place.index);
    const value = valueOf(quantity, place);
    return nameOf(place) + ": " + (seen && seen !== "–" ? seen + ", in full " + value : value);
  };

  const tell = (place) => {
    readout.textContent = place ? nameOf(place) + ": " + valueOf(shown, place) : hint;
  };

  const showQuantity = (quantity) => {
    shown = quantity;
    for (const place of places) {
      place.cell.className = classOf(quantity, place);
      place.cell.textContent = textOf(quantity, "cells", place.index);
      if (exists(place)) {
        place.cell.setAttribute("aria-label", labelOf(quantity, place));
      }
    }
    for (const table of tables) {
      table.setAttribute("aria-label", quantity.alt);
    }
    find(".scale").className = "scale scale-" + (quantity.diverging ? "d" : "s");
    find(".unit").textContent = quantity.unit;
    find(".ticks").replaceChildren(...quantity.scale.map((tick) => element("span", tick)));
    find(".title").textContent = quantity.title;
    find(".text").textContent = quantity.caption;
    find(".of").textContent = quantity.basis;
    for (const link of figure.querySelectorAll("a[data-format]")) {
      link.setAttribute("href", "figures/" + quantity.name + "." + link.dataset.format);
    }
    tell(chosen);
    markRow();
  };

  const element = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  };

  // One head at a time can be reached by the Tab key; arrows move from it.
  const moveStop = (place) => {
    if (stop) {
      stop.cell.tabIndex = -1;
    }
    stop = place;
    stop.cell.tabIndex = 0;
  };

  const choose = (place) => {
    if (chosen) {
      chosen.cell.removeAttribute("aria-selected");
    }
    chosen = place;
    place.cell.setAttribute("aria-selected", "true");
    moveStop(place);
    tell(place);
    fillHeads(place);
    chooseLayer.value = String(place.line);
    chooseHead.value = String(place.index);
    detail.hidden = false;
    const kinds = data.kinds[place.index];
    const name = nameOf(place);
    detail.querySelector("h3").textContent = name[0].toUpperCase() + name.slice(1) + (kinds ? ": " + kinds : "");
    detail.querySelector("p").textContent = data.layers[place.line];
    const body = detail.querySelector("tbody");
    body.replaceChildren(...data.quantities.map((quantity) => rowOf(quantity, place)));
    markRow();
  };

  const rowOf = (quantity, place) => {
    const row = document.createElement("tr");
    const name = element("th", quantity.title);
    name.scope = "row";
    const value = element("td", textOf(quantity, "texts", place.index));
    const ends = textOf(quantity, "ends", place.index);
    if (ends) {
      value.append(element("small", ends));
    }
    const rank = element("td", textOf(quantity, "ranks", place.index) || "–");
    const layer = element("td", textOf(quantity, "layers", place.line) || "–");
    row.append(name, value, rank, layer);
    return row;
  };

  const markRow = () => {
    const listed = detail.querySelector("tbody").rows;
    data.quantities.forEach((quantity, i) => {
      if (listed[i]) {
        listed[i].className = quantity === shown ? "shown" : "";
      }
    });
  };

  const option = (text, value) => {
    const made = element("option", text);
    made.value = value;
    return made;
  };

  // Options under headings; without a heading where there is one only.
  const fillGrouped = (select, entries) => {
    const groups = new Map();
    for (const [heading, made] of entries) {
      groups.set(heading, [...(groups.get(heading) || []), made]);
    }
    for (const [heading, options] of groups) {
      if (groups.size === 1) {
        select.append(...options);
        continue;
      }
      const group = document.createElement("optgroup");
      group.label = heading;
      group.append(...options);
      select.append(group);
    }
  };

  const headsOfLine = (line) => places.filter((place) => place.line === line && exists(place));

  const fillHeads = (place) => {
    const heads = headsOfLine(place.line);
    chooseHead.replaceChildren(...heads.map((each) => option(String(each.head), String(each.index))));
  };

  // The nearest head in a direction of the same panel; the same place where there is none.
  const step = (place, down, right) => {
    const panel = data.panels[place.panel];
    let row = place.row + down;
    let column = place.column + right;
    while (row >= 0 && row < panel.layers.length && column >= 0 && column < panel.heads.length) {
      const found = placeOf.get(tables[place.panel].tBodies[0].rows[row].cells[column + 1]);
      if (exists(found)) {
        return found;
      }
      row += down;
      column += right;
    }
    return place;
  };

  const moves = {
    ArrowUp: (place) => step(place, -1, 0),
    ArrowDown: (place) => step(place, 1, 0),
    ArrowLeft: (place) => step(place, 0, -1),
    ArrowRight: (place) => step(place, 0, 1),
    Home: (place) => headsOfLine(place.line)[0],
    End: (place) => headsOfLine(place.line).at(-1),
  };

  const placeAt = (event) => {
    const place = placeOf.get(event.target.closest("td"));
    return place && exists(place) ? place : null;
  };

  for (const table of tables) {
    table.setAttribute("role", "grid");
    table.addEventListener("mouseover", (event) => tell(placeAt(event) || chosen));
    table.addEventListener("mouseleave", () => tell(chosen));
    table.addEventListener("focusin", (event) => tell(placeAt(event) || chosen));
    table.addEventListener("click", (event) => {
      const place = placeAt(event);
      if (place) {
        choose(place);
        place.cell.focus();
      }
    });
    table.addEventListener("keydown", (event) => {
      const place = placeAt(event);
      if (!place || event.ctrlKey || event.altKey || event.metaKey) {
        return;
      }
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose(place);
      } else if (moves[event.key]) {
        event.preventDefault();
        const next = moves[event.key](place);
        moveStop(next);
        next.cell.focus();
      }
    });
  }

  fillGrouped(
    chooseQuantity,
    data.quantities.map((quantity, i) => [quantity.group, option(quantity.title, String(i))]),
  );
  const lines = new Map(places.map((place) => [place.line, place]));
  fillGrouped(
    chooseLayer,
    [...lines.values()].map((place) => [data.panels[place.panel].name, option(String(place.layer), String(place.line))]),
  );
  const first = places.find(exists);
  fillHeads(first);
  chooseQuantity.addEventListener("change", () => showQuantity(data.quantities[Number(chooseQuantity.value)]));
  chooseLayer.addEventListener("change", () => choose(headsOfLine(Number(chooseLayer.value))[0]));
  chooseHead.addEventListener("change", () => choose(places[Number(chooseHead.value)]));
  for (const place of places) {
    if (exists(place)) {
      place.cell.tabIndex = -1;
    }
  }
  moveStop(first);
  // A menu that showed the first head could not choose it: nothing would change.
  chooseLayer.selectedIndex = -1;
  chooseHead.selectedIndex = -1;
  showQuantity(shown);
  controls.hidden = false;
  readout.hidden = false;
})();
