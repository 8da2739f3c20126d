"""What one page shows, as plain data: the contract between Python and the browser runtime.

One payload holds one time segment of one *timeline* (one rank of one run, one device). Times are offsets in ns from
``header["t0_ns"]``, sizes are bytes. Curves are not stored: the runtime adds up the blocks and the *older* steps, which
by definition give the recorded totals back exactly (spec/ascend_profiler 3.3a).

Header
------
======================  ========================================================================================
``format``              1
``title, subtitle``     text
``t0_ns``               epoch of offset 0, as text (a JavaScript number cannot hold it)
``span``                ``[start, end]`` of the whole timeline
``window``              ``[start, end]`` of this segment
``segment``             index of this segment
``segments``            ``[{"href", "start", "end"}]``, all of them, in order
``index_href``          link to the index page, or null
``names``               operator names; ``name`` column is an index
``frames``              distinct stack frames, text
``plumbing``            one 0/1 per frame: framework internals, to be folded
``stacks``              lists of frame indices, innermost first; ``stack`` column is index + 1, 0 = no stack
``sites``               one per stack: position of the site frame in its list, or -1
``classes``             ``[{"key", "label"}]`` lifetime classes; ``class`` column is an index. Keys: ``older``,
                        ``phase``, ``step``, ``fwdbwd``, ``transient``, ``open``
``series``              ``[{"label", "pool", "device", "peak": {"allocated": [t, bytes], "active":…, "reserved":…},
                        "has_active", "has_reserved", "caveat"}]``; a ledger without samples is absent from ``peak``.
                        The first one is shown first. Series are never added to each other
``resident``            ``{"label", "interval_ns", "peak": [t, bytes]}`` of the process samples, or null
``sources``             ``[{"label", "start", "end", "status", "series"}]`` recorded windows, in time order
``phases``              ``[{"name", "kind", "start", "end", "peak_bytes", "floor_bytes"}]``, kind ``role`` or ``range``
``steps``               ``[{"name", "start", "end"}]``
``notes``               lines of text for the footer: what was skipped, repaired, guessed
======================  ========================================================================================

Columns of blocks (one value a block that overlaps the window, sorted by ``start``, then by ``id``)
------------------------------------------------------------------------------------
``id`` (global, same in every segment) · ``start`` · ``life`` (until its end in terms of *allocated*; an open block
lasts until its source's window ends) · ``size`` · ``name`` · ``stack`` · ``kind`` (0 none, 1 own, 2 forward) ·
``class`` · ``series`` (-> ``header.series``). Start and end may lie outside the window: they are the true ones.
``late_block`` (position in these columns) and ``late`` (ns): blocks that stay *active* that much longer.

Step columns (value holds until the next ``_t``; value 0 = no data, else bytes + 1)
-----------------------------------------------------------------------------------
for series k: ``older_t_k older_v_k`` (allocated − live blocks), ``active_t_k active_v_k`` (active − blocks still
active), ``reserved_t_k reserved_v_k``; once: ``resident_t resident_v``; ``overview_t overview_v`` (allocated of the
first series over the whole span, thinned by first/min/max/last per column).
"""
