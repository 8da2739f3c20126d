// Start of an exported page: unpack its parts, run the scripts among them, mount the viewer.
(async () => {
  "use strict";
  const root = document.querySelector("[data-memscope]");
  const part = (name) => document.querySelector(`script[data-part="${name}"]`)?.textContent;
  const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const unpack = async (name) => {
    const stream = new Blob([decode(part(name))]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  // The policy allows an inline script by the hash of its text, which holds for one added here too.
  const run = (text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  };
  try {
    if (!window.DecompressionStream) throw new Error("this browser is too old (it lacks DecompressionStream)");
    const style = document.createElement("style");
    style.textContent = await unpack("style");
    document.head.append(style);
    if (part("bokeh")) run(await unpack("bokeh"));
    if (!window.Bokeh) throw new Error("the BokehJS file that belongs beside this page is missing");
    const packed = part("payload") ?? window.memscopePayload;
    if (!packed) throw new Error("the data file that belongs beside this page is missing");
    window.memscopePayload = undefined;
    run(await unpack("runtime"));
    const figures = JSON.parse(await unpack("figures"));
    window.memscope = await window.memscopeRuntime.mount(root, decode(packed), figures, { host: { page: true } });
  } catch (error) {
    root.textContent = `This page cannot be shown: ${error.message}`;
    throw error;
  }
})();
