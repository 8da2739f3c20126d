"""The events of ``trace_view.json``: first what the host recorded, then the device, then the arrows between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .ascend_csv import micros
from .records import Collection, Op, Task

Event = dict[str, Any]

BREAK = ";\r\n"
HARDWARE, MEMORY, CANN = 13, 19, 7  # layers of a device process number
COUNTER_EVERY = 4
ARROW_EVERY = 8


def trace_events(collection: Collection) -> list[Event]:
    """All events of one collection in the order of the file."""
    return [
        *_host_names(collection),
        *(_operator(collection, op) for op in collection.ops),
        *_queue(collection),
        *_python(collection),
        *_device_names(collection),
        *_ranges(collection),
        *_counters(collection),
        *_kernels(collection),
        *_backward_arrows(collection),
        *_launch_arrows(collection),
    ]


def _device_pid(collection: Collection, layer: int) -> int:
    return collection.process.pid << 10 | layer << 5 | collection.process.device


def _name(kind: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _host_names(collection: Collection) -> Iterator[Event]:
    process = collection.process
    yield _name("process_name", process.pid, 0, name="Python")
    yield _name("process_labels", process.pid, 0, labels="CPU")
    yield _name("process_sort_index", process.pid, 0, sort_index=0)
    for tid in (process.main_tid, process.backward_tid, process.queue_tid):
        yield _name("thread_name", process.pid, tid, name=f"Thread {tid}")
        yield _name("thread_sort_index", process.pid, tid, sort_index=tid)


def _device_names(collection: Collection) -> Iterator[Event]:
    for layer, name, label in (
        (CANN, "CANN", "CPU"),
        (HARDWARE, "Ascend Hardware", "NPU"),
        (MEMORY, "NPU MEM", "NPU"),
    ):
        pid = _device_pid(collection, layer)
        yield _name("process_name", pid, 0, name=name)
        yield _name("process_labels", pid, 0, labels=label)
        yield _name("process_sort_index", pid, 0, sort_index=layer)


def _interval(name: str, pid: int, tid: int, start_ns: int, end_ns: int) -> Event:
    duration = (end_ns - start_ns) / 1000  # exact to the nanosecond: a duration is far below 2^53
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": micros(start_ns), "dur": duration}


def _operator(collection: Collection, op: Op) -> Event:
    args: Event = {"Sequence number": op.sequence, "Fwd thread id": op.fwd_tid}
    if op.dims:
        args["Input Dims"] = BREAK.join(op.dims)
    if op.stack is not None:
        args["Call stack"] = BREAK.join(op.stack)
    event = _interval(op.name, collection.process.pid, op.tid, op.start_ns, op.end_ns)
    return {**event, "cat": "cpu_op", "args": args}


def _queue(collection: Collection) -> Iterator[Event]:
    pid, queue_tid = collection.process.pid, collection.process.queue_tid
    tids = {op.op_id: op.tid for op in collection.ops}
    for task in collection.tasks:
        args, tid = {"correlation_id": task.correlation_id}, tids[task.op_id]
        yield {
            **_interval("Enqueue", pid, tid, task.enqueue_ns, task.enqueue_end_ns),
            "cat": "enqueue",
            "args": args,
        }
        yield _arrow("s", "enqueue_to_dequeue", "async_task_queue", task.correlation_id, pid, tid, task.enqueue_ns)
        yield {
            **_interval(f"Dequeue@{task.kernel}", pid, queue_tid, task.dequeue_ns, task.dequeue_end_ns),
            "cat": "dequeue",
            "args": args,
        }
        yield _arrow(
            "f",
            "enqueue_to_dequeue",
            "async_task_queue",
            task.correlation_id,
            pid,
            queue_tid,
            task.dequeue_ns,
        )


def _python(collection: Collection) -> Iterator[Event]:
    for call in collection.python_calls:
        event = _interval(call.name, collection.process.pid, call.tid, call.start_ns, call.end_ns)
        yield {
            **event,
            "cat": "python_function",
            "args": {"Python id": call.call_id, "Python parent id": call.parent_id},
        }


def _ranges(collection: Collection) -> Iterator[Event]:
    """Ranges of the training code: no category, on the host process."""
    for mark in collection.ranges:
        event = _interval(mark.name, collection.process.pid, mark.tid, mark.start_ns, mark.end_ns)
        yield {**event, "args": {"Domain": "default", "Event type": "push/pop", "Category": mark.kind}}


def _counters(collection: Collection) -> Iterator[Event]:
    pid = _device_pid(collection, MEMORY)
    for sample in collection.process_samples[::COUNTER_EVERY]:
        for name, n_bytes in (("APP/DDR", 0), ("APP/HBM", sample.resident_bytes)):
            yield {
                "name": name,
                "ts": micros(sample.t_ns),
                "pid": pid,
                "tid": 0,
                "args": {"KB": n_bytes / 1024},
                "ph": "C",
            }


def _kernels(collection: Collection) -> Iterator[Event]:
    pid = _device_pid(collection, HARDWARE)
    for task in collection.tasks:
        event = _interval(task.kernel, pid, task.stream, task.kernel_ns, task.kernel_end_ns)
        args = {"Model Id": 4294967295, "Task Type": "AI_CORE", "connection_id": task.correlation_id}
        yield {**event, "args": args}


def _arrow(ph: str, name: str, category: str, key: int | str, pid: int, tid: int, t_ns: int) -> Event:
    return {
        "ph": ph,
        "bp": "e",
        "name": name,
        "id": key,
        "pid": pid,
        "tid": tid,
        "ts": micros(t_ns),
        "cat": category,
    }


def _backward_arrows(collection: Collection) -> Iterator[Event]:
    """From a forward operator to its backward node, for some of them."""
    pid = collection.process.pid
    first_of = {op.sequence: op for op in reversed(collection.ops) if op.sequence >= 0 and op.fwd_tid == 0}
    for op in collection.ops:
        if op.fwd_tid and op.sequence >= 0 and op.sequence % ARROW_EVERY == 0:
            forward = first_of[op.sequence]
            yield _arrow("s", "fwdbwd", "fwdbwd", op.sequence, pid, forward.tid, forward.start_ns)
            yield _arrow("f", "fwdbwd", "fwdbwd", op.sequence, pid, op.tid, op.start_ns)


def _launch_arrows(collection: Collection) -> Iterator[Event]:
    """From the operator to its kernel; the key is the start of the kernel in nanoseconds, beyond 2^53."""
    ops = {op.op_id: op for op in collection.ops}
    for task in collection.tasks:
        yield from _launch_pair(collection, task, ops[task.op_id])


def _launch_pair(collection: Collection, task: Task, op: Op) -> Iterator[Event]:
    device = _device_pid(collection, HARDWARE)
    pair = ("torch_to_npu", "async_npu", task.kernel_ns)
    yield _arrow("s", *pair, collection.process.pid, op.tid, op.start_ns)
    yield _arrow("f", *pair, device, task.stream, task.kernel_ns)
