// The contrast of every text that is seen, as the browser draws it: its own colour over what lies below it, at nine
// places inside its box. Returns how many texts there are, the least contrast, and the texts below `least`.
(least) => {
  document.head.insertAdjacentHTML(
    "beforeend",
    "<style>figure { content-visibility: visible !important } * { pointer-events: auto !important }</style>",
  );
  const silent = ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION", "title", "desc"];
  const places = [0.2, 0.5, 0.8].flatMap((x) => [0.3, 0.5, 0.7].map((y) => [x, y]));
  const isDrawing = (element) => element instanceof SVGElement && element.tagName !== "svg";
  const linear = (channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const opacityOf = (element) => {
    let opacity = 1;
    for (let each = element; each; each = each.parentElement) {
      opacity *= Number(getComputedStyle(each).opacity);
    }
    return opacity;
  };
  // [red, green, blue, opacity] of a text or of a ground; null if nothing is painted.
  const colourOf = (element, property) => {
    const style = getComputedStyle(element);
    const found = (isDrawing(element) ? style.fill : style[property]).match(/rgba?\(([^)]+)\)/);
    if (!found) {
      return null;
    }
    const [red, green, blue, alpha = 1] = found[1].split(/[ ,/]+/).map(Number);
    const own = isDrawing(element) ? Number(style.fillOpacity) : 1;
    return [red, green, blue, alpha * own * opacityOf(element)];
  };
  const groundAt = (text, x, y) => {
    const stack = document.elementsFromPoint(x, y);
    const own = stack.indexOf(text);
    const layers = [];
    for (const each of own < 0 ? stack : stack.slice(own)) {
      const isText = each.tagName === "text" || each.tagName === "tspan";
      const colour = isText ? null : colourOf(each, "backgroundColor");
      if (colour && colour[3] > 0) {
        layers.push(colour);
      }
    }
    const paper = colourOf(document.body, "backgroundColor");
    return layers.reverse().reduce((below, layer) => over(layer, below), paper[3] ? paper : [255, 255, 255]);
  };
  const contrastOf = (text) => {
    text.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const box = text.getBoundingClientRect();
    const ink = colourOf(text, "color");
    const found = places.map(([x, y]) => {
      const ground = groundAt(text, box.x + box.width * x, box.y + box.height * y);
      const [low, high] = [luminance(over(ink, ground)), luminance(ground)].sort((a, b) => a - b);
      return (high + 0.05) / (low + 0.05);
    });
    return Math.min(...found);
  };
  const texts = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    const isSeen = box.width && box.height && element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (walk.currentNode.textContent.trim() && isSeen && !silent.includes(element.tagName)) {
      texts.add(element);
    }
  }
  const measured = [...texts].map((text) => [contrastOf(text), text.textContent.slice(0, 60)]);
  const lowest = Math.min(...measured.map(([contrast]) => contrast));
  return { count: measured.length, lowest, bad: measured.filter(([contrast]) => contrast < least) };
}
