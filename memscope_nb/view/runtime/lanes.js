// Lanes: blocks of one group that live at the same time lie in different lanes of its row.

function pushHeap(heap, value) {
  let i = heap.push(value) - 1;
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (heap[parent] <= value) break;
    heap[i] = heap[parent];
    i = parent;
  }
  heap[i] = value;
}

function popHeap(heap) {
  const top = heap[0];
  const value = heap.pop();
  const n = heap.length;
  if (!n) return top;
  let i = 0;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= n) break;
    if (child + 1 < n && heap[child + 1] < heap[child]) child += 1;
    if (heap[child] >= value) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = value;
  return top;
}

/**
 * Lowest free lane for every block, per group.
 * @param events from eventsOf
 * @param group group of every block
 * @returns {{lane: Uint32Array, lanes: Uint32Array}} lane per block, number of lanes per group
 */
export function assignLanes(events, group, nGroups) {
  const lane = new Uint32Array(group.length);
  const lanes = new Uint32Array(nGroups);
  const free = Array.from({ length: nGroups }, () => []);
  for (let e = 0; e < events.code.length; e += 1) {
    const code = events.code[e];
    const i = code >= 0 ? code : ~code;
    const g = group[i];
    if (code < 0) pushHeap(free[g], lane[i]);
    else lane[i] = free[g].length ? popHeap(free[g]) : lanes[g]++;
  }
  return { lane, lanes };
}
