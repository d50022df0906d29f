"""Faults that the tests have to notice: small changes of what the pack does, each of which a user would suffer from.

`python3 -m tools mutations` puts them into copies of the checkout, one at a time, and writes into `tests/mutations.md`
which test noticed each. A fault is a text that stands once in its file and what is put in its place. Each changes a
result, a number that is told, or a promise that is kept; none of them stops an import. `tests/unit/test_mutations.py`
holds the list to the source: whoever changes a line that is named here changes the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A fault.

    Attributes:
        name: what is wrong with it, in the field's words.
        file: from the checkout's root.
        old, new: a text that is there once, and what takes its place.
        affected: test files below `tests/` that ought to notice, where the fast tier does not.
    """

    name: str
    file: str
    old: str
    new: str
    affected: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The source with the fault in it.

        Raises:
            ValueError: the text is not there once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {source.count(self.old)} times, not once")
        return source.replace(self.old, self.new)


def _of(file: str, affected: str, *faults: tuple[str, str, str]) -> Iterator[Mutation]:
    """The faults of a file: name, old text, new text each.

    Args:
        affected: test files, with spaces between them.
    """
    return (Mutation(name, file, old, new, tuple(affected.split())) for name, old, new in faults)


EXACT = "unit/test_attention_exact.py unit/test_attention_hard_set.py"
LOCAL = "unit/test_local_attention.py host/test_local_attention.py"
STRIPS = "unit/test_exact_vae.py host/test_exact_vae.py emulator/test_strips.py"
TILES = "unit/test_feathered.py unit/test_tile_plan.py host/test_low_memory_vae.py"
PREFETCH = "unit/test_prefetch.py host/test_offload.py emulator/test_staging.py emulator/test_offload.py"
CASTING = "unit/test_casting.py host/test_casting.py"
PREDICTION = "unit/test_prediction.py host/test_prediction.py"
IN_MODELS = "host/test_attention_in_models.py"
GRAPH = "unit/test_graph.py host/test_workflow_files.py"
VIDEO = "unit/test_video_files.py"
SERVER = "host/test_server_routes.py"
ESTIMATE = "host/test_estimate_cli.py host/test_server_routes.py"

# ------------------------------------------------------------------------------------------------------- the engines

ATTENTION = (
    *_of(
        "attention/online.py",
        EXACT,
        (
            "online softmax: earlier sums keep the old maximum",
            "            self.row_sum.mul_(decay)\n            self.values.mul_(decay)",
            "            self.values.mul_(decay)",
        ),
        (
            "online softmax: earlier values keep the old maximum",
            "            self.row_sum.mul_(decay)\n            self.values.mul_(decay)",
            "            self.row_sum.mul_(decay)",
        ),
        (
            "online softmax: keys beyond the last whole tile skipped",
            "in spans(k.shape[2], cols):",
            "in spans(k.shape[2] // cols * cols, cols):",
        ),
    ),
    *_of(
        "attention/tiles.py",
        EXACT,
        (
            "tiles: every head has the first head's mask",
            "tile = tile[group.heads] if tile.shape[0] > 1 else tile",
            "tile = tile[:1]",
        ),
        (
            "tiles: every picture of a batch has the first one's mask",
            "mask[group.batch if mask.shape[0] > 1 else 0]",
            "mask[0]",
        ),
        (
            "tiles: the mask's rows are those of the first tile",
            "tile = tile[:, rows] if tile.shape[1] > 1 else tile",
            "tile = tile[:, : rows.stop - rows.start] if tile.shape[1] > 1 else tile",
        ),
        ("tiles: scale forgotten under a mask", "scale * LOG2E if mask is None else scale", "scale * LOG2E"),
        (
            "tiles: scores in the operands' precision",
            "return torch.float64 if q.dtype == torch.float64 else torch.float32",
            "return q.dtype",
        ),
        ("tiles: scores that overflow are thought safe", "SAFE_SCORE = 40.0", "SAFE_SCORE = 400.0"),
        (
            "tiles: grouped heads read their keys by turns",
            "slice(first // queries_per_key, (heads.stop - 1) // queries_per_key + 1)",
            "slice(first % k.shape[1], first % k.shape[1] + 1)",
        ),
    ),
    *_of(
        "attention/sliced.py",
        EXACT,
        (
            "sliced: a row whose keys are all masked is not a number",
            "                total.masked_fill_(total == 0, 1.0)",
            "                pass",
        ),
    ),
    *_of(
        "attention/online_backward.py",
        "unit/test_attention_gradients.py host/test_attention_in_training.py",
        ("gradients: scale forgotten", "        d_scores.mul_(self.scale)\n", ""),
        ("gradients: a mask's is scaled", "into += d_scores.sum", "into += self.scale * d_scores.sum"),
        ("gradients: the output's share of the scores forgotten", "d_scores.sub_(row_sums).mul_", "d_scores.mul_"),
    ),
    *_of(
        "attention/call.py",
        f"unit/test_attention_exact.py unit/test_attention_choice.py {IN_MODELS}",
        ("call: a mask by batch is taken for one by head", "mask = mask[:, None]", "mask = mask[None]"),
        (
            "call: the caller's scale forgotten",
            'scale = options.get("scale")',
            "scale = None",
        ),
    ),
    *_of(
        "attention/backends.py",
        "unit/test_attention_choice.py host/test_attention_in_models.py",
        (
            "auto: the whole score matrix where torch has no fused kernel",
            'BACKENDS["sdpa"].refusal(call) or _whole_matrix(call)',
            'BACKENDS["sdpa"].refusal(call)',
        ),
        (
            "a model that refuses quantised attention gets it",
            "(call.low_precision_refused and not self.full_precision, ",
            "(False, ",
        ),
    ),
    *_of(
        "attention/blocks.py",
        f"unit/test_attention_choice.py {IN_MODELS}",
        ("blocks: the last one of a span left out", "place.index <= self.last", "place.index < self.last"),
    ),
    *_of(
        "attention/local/halo.py",
        LOCAL,
        ("window: halo one cell short", "seen = size + 2 * radius", "seen = size + 2 * radius - 1"),
        (
            "window: nothing seen before a block",
            "first = min(max(start - radius, 0), length - seen)",
            "first = min(start, length - seen)",
        ),
        (
            "window: far keys of the first block for all",
            "gathered[:, i, :, near:] = far[i]",
            "gathered[:, i, :, near:] = far[0]",
        ),
    ),
    *_of(
        "attention/local/local_global.py",
        LOCAL,
        (
            "global tokens within the window count twice",
            "            bias[: len(lattice.index)].masked_fill_(patch.holds(lattice.cells), -torch.inf)\n",
            "",
        ),
        (
            "global tokens see their window alone",
            "        lattice.attend_all(out, q, k, v, scale)\n",
            "",
        ),
    ),
    *_of(
        "attention/local/lattice.py",
        LOCAL,
        (
            "lattice laid over the text",
            "return grid.before + (frame * grid.height + row) * grid.width + column",
            "return (frame * grid.height + row) * grid.width + column",
        ),
    ),
    *_of(
        "attention/local/bigbird.py",
        LOCAL,
        (
            "random keys drawn within the window",
            "cells = cells[~patch.holds(cells)][: self.count]",
            "cells = cells[: self.count]",
        ),
    ),
    *_of(
        "attention/local/kv_pool.py",
        LOCAL,
        ("a mean of keys weighs as one token", "if self.factor == 1 or (full and not text):", "if self.factor:"),
    ),
    *_of(
        "attention/local/local_pool.py",
        LOCAL,
        (
            "far cells count what the window has seen",
            "* torch.outer(rows, columns)\n",
            "* torch.outer(rows, columns) * 0\n",
        ),
    ),
    *_of(
        "attention/local/kmeans.py",
        LOCAL,
        ("k-means: a cluster's size forgotten in its rank", " + clusters.sizes.to(q.dtype).log2()", ""),
    ),
    *_of(
        "attention/local/block_sparse.py",
        LOCAL,
        ("block sparse: a tile may leave itself out", "dim2=3).fill_(torch.inf)", "dim2=3).fill_(-torch.inf)"),
    ),
    *_of(
        "attention/local/error.py",
        LOCAL,
        ("error of local attention measured on the text", "return grid.before + ((stretch", "return ((stretch"),
    ),
)

VAE = (
    *_of(
        "vae/exact/operations/pad.py",
        STRIPS,
        (
            "strips: halo one row short",
            "first, last = source.clamp(start - above, stop - above)",
            "first, last = source.clamp(start - above, stop - above - 1)",
        ),
        (
            "strips: padding of the last one repeats the edge",
            "inside.narrow(dim, max(0, len(rows) - below), min(below, len(rows))).fill_(",
            "inside.new_empty(1).fill_(",
        ),
    ),
    *_of(
        "vae/exact/operations/whole.py",
        STRIPS,
        (
            "strips: queries see the keys of their strip alone",
            "return (start, stop) if source == 0 else (0, node.sources[source].rows.count)",
            "return start, stop",
        ),
    ),
    *_of(
        "vae/exact/operations/row_by_row.py",
        STRIPS,
        (
            "upsampling: a strip that begins with an odd row is a row off",
            "node.cut(rows, start - start // self.factor * self.factor, stop - start)",
            "node.cut(rows, 0, stop - start)",
        ),
    ),
    *_of(
        "vae/exact/operations/convolve_upsampled.py",
        STRIPS,
        (
            "upsampling: even rows are made of an odd row's neighbours",
            "x.narrow(-2, low - 1 + parity - first, high - low + 1)",
            "x.narrow(-2, low - parity - first, high - low + 1)",
        ),
    ),
    *_of(
        "vae/exact/running/moments.py",
        STRIPS,
        (
            "group norm: statistics of the first strip alone",
            "                self._merged = self._of_many()",
            "                self._merged = self.parts[0], self.parts[1]",
        ),
        (
            "group norm: variance between strips forgotten",
            "torch.addcmul(variances, apart, apart).T @ shares",
            "variances.T @ shares",
        ),
        (
            "group norm: a short last strip weighs as the others",
            "            if count != self.counts[0]:\n                shares[start:stop].fill_(count / total)\n",
            "",
        ),
    ),
    *_of(
        "vae/exact/running/stores.py",
        STRIPS,
        (
            "float16 store: values too large for it not noticed",
            "if self.kept is torch.float16 and self.node.dtype is not torch.float16:",
            "if self.kept is torch.float64:",
        ),
        (
            "strips: a strip that ends where the rows begin is read for them",
            "bisect_right(self.parts, row,",
            "bisect_right(self.parts, row - 1,",
        ),
    ),
    *_of(
        "vae/exact/cutting/passes.py",
        STRIPS,
        (
            "strips: maps that were to be recomputed are stored",
            "for node in self.storable if node not in recomputed]",
            "for node in self.storable]",
        ),
    ),
    *_of(
        "vae/exact/cutting/windows.py",
        STRIPS,
        (
            "strips: rows that a waiting operation goes on from are let go",
            "min(first, new, waited_for)",
            "min(first, new)",
        ),
    ),
    *_of(
        "vae/exact/planning/choice.py",
        STRIPS,
        ("strips: store dtype ignored", "        return choice.store\n", "        return node.dtype\n"),
    ),
    *_of(
        "vae/exact/planning/search.py",
        STRIPS,
        (
            "strips: budget ignored where caches set their height",
            "            if schedule.peak <= self.budget:\n                return schedule, True",
            "            if schedule.peak:\n                return schedule, True",
        ),
        (
            "strips: budget ignored on an accelerator",
            "        if ideal.peak <= self.budget:\n",
            "        if ideal.peak:\n",
        ),
    ),
    *_of(
        "vae/exact/planning/schedule.py",
        STRIPS,
        (
            "strips: stored maps left out of a later pass's peak",
            "self.beside + whole + _bytes_but(touched, self.device) + cost.peak",
            "self.beside + whole + cost.peak",
        ),
    ),
    *_of(
        "vae/exact/planning/counted.py",
        "unit/test_workspace.py",
        (
            "strips: what a card's convolutions hold left out of the plan",
            "if figures.workspace is None or self.meter.strips > 1:",
            "if True:",
        ),
    ),
    *_of(
        "vae/exact/operations/convolve_upsampled.py",
        "unit/test_workspace.py",
        (
            "strips: a folded convolution asked about with a row too few",
            "slab_shape(results + 1)",
            "slab_shape(results)",
        ),
    ),
    *_of(
        "vae/exact/planning/card.py",
        "unit/test_card_figures.py emulator/test_card_figures.py",
        ("link speed rounded down", "max(0, round(math.log2(rate / LINK_STEP)))", "int(math.log2(rate / LINK_STEP))"),
        ("a card without bfloat16 is thought fast in it", "version[0] >= FIRST_WITH_BFLOAT16", "version"),
    ),
    *_of(
        "vae/exact/engine.py",
        STRIPS,
        (
            "strips: a plan for another budget used again",
            "key = (planner.signature(), self.budget, self.store, self.rows, search.has_far)",
            "key = (planner.signature(), self.store, self.rows, search.has_far)",
        ),
        (
            "strips: copies of the input left out of the budget",
            "[*made, *self.beside, *self.recorder.made]",
            "[*made, *self.recorder.made]",
        ),
    ),
    *_of(
        "vae/exact/rules/rows.py",
        STRIPS,
        (
            "strips: a sum over the rows taken strip by strip",
            "if node.rows.dim in (dim % len(node.shape) for dim in dims) or len",
            "if len",
        ),
    ),
    *_of(
        "vae/feather.py",
        TILES,
        (
            "feathers: weights do not sum to 1",
            "[(window / total[span]).float() for span, window",
            "[window.float() for span, window",
        ),
        (
            "feathers: causal tiles faded where they should be joined",
            "torch.cat((torch.zeros(before), ",
            "torch.cat((torch.ones(before), ",
        ),
    ),
    *_of(
        "vae/axis.py",
        TILES,
        (
            "tiles overlap less than was asked",
            "count = -(-(length - overlap) // (tile - overlap))",
            "count = -(-length // tile)",
        ),
    ),
    *_of(
        "vae/plan.py",
        TILES,
        ("tiles: budget ignored", "TilePlan(axes, need, need <= budget)", "TilePlan(axes, need, True)"),
    ),
)

OFFLOAD = (
    *_of(
        "offload/staging.py",
        PREFETCH,
        (
            "prefetch: a layer does not wait for its copy",
            "            compute_stream(self._device).wait_event(staged.copied)",
            "            pass",
        ),
        (
            "prefetch: bytes of the ring overwritten while they are read",
            "                self._stream.wait_event(moment)",
            "                pass",
        ),
        (
            "prefetch: strides of a weight not kept",
            "target = flat.as_strided(source.shape, source.stride())",
            "target = flat.view(source.shape)",
        ),
    ),
    *_of(
        "offload/ring.py",
        PREFETCH,
        (
            "ring: a region given out while it is in use",
            "                if other.token is None:\n                    return None\n",
            "                if other.token is None:\n                    continue\n",
        ),
    ),
    *_of(
        "offload/prefetch.py",
        PREFETCH,
        (
            "prefetch: a layer that was not expected is not copied",
            " or self._staged.get(name) or self._copy_now(name)",
            " or self._staged.get(name)",
        ),
        (
            "prefetch: a layer keeps the ring's bytes after it ran",
            "            self.streamed[name].put_back(self._hide)\n            if name",
            "            if name",
        ),
        (
            "prefetch: bytes that came back are not asked for again",
            "        self._is_full = False\n        self._bytes_staged -=",
            "        self._bytes_staged -=",
        ),
        (
            "prefetch: weights written between calls not copied anew",
            "        while self._drop_latest():\n            pass\n",
            "",
        ),
    ),
    *_of(
        "offload/streamed.py",
        PREFETCH,
        (
            "prefetch: one exchanged parameter of a layer not noticed",
            "return all(self.layer._parameters.get(name)",
            "return any(self.layer._parameters.get(name)",
        ),
    ),
    *_of(
        "offload/call_order.py",
        f"unit/test_prefetch.py unit/test_offload_schedule.py {PREFETCH}",
        (
            "prefetch: the layer that runs is expected next",
            "self._next = (self._next + ahead + 1) % count",
            "self._next = (self._next + ahead) % count",
        ),
    ),
    *_of(
        "offload/schedule.py",
        "unit/test_offload_schedule.py host/test_offload.py emulator/test_offload.py",
        ("schedule: ring too small", "return -(-size // unit) * unit", "return size // unit * unit"),
        (
            "schedule: budget ignored",
            "if sum(cost.bytes for cost in costs) <= budget:",
            "if sum(cost.bytes for cost in costs) <= 2 * budget:",
        ),
        (
            "schedule: the least budget without the layers that stay",
            "*(kept + ring_bytes(size) for size, kept in larger.items())",
            "*(ring_bytes(size) for size in larger)",
        ),
    ),
    *_of(
        "offload/spread.py",
        "unit/test_offload_schedule.py host/test_offload.py",
        (
            "schedule: error diffusion loses its remainder",
            "            carried -= costs[i].bytes\n",
            "            carried = 0.0\n",
        ),
    ),
    *_of(
        "offload/layers.py",
        CASTING,
        (
            "casting: skip rule ignored",
            "_always_kept(module, kind, weights) or _by_pattern(name, skip)",
            "_always_kept(module, kind, weights)",
        ),
        ("casting: embeddings cast", "    if kind is LayerKind.EMBEDDING:", "    if kind is None:"),
    ),
    *_of(
        "offload/plain.py",
        CASTING,
        ("casting: weights beyond the range become undefined", "wide.clamp(-largest, largest).to", "wide.to"),
    ),
    *_of(
        "offload/fingerprint.py",
        CASTING,
        ("fingerprint without the values", '\\n".encode() + mark)', '\\n".encode())'),
    ),
    *_of(
        "offload/structure.py",
        CASTING,
        (
            "a copy of a model shares its modules",
            "{name: self._attribute(m) for name, m in original._modules.items()}",
            "dict(original._modules)",
        ),
    ),
    *_of(
        "offload/sensitivity.py",
        CASTING,
        ("sensitivity: size limit exceeded by a group", "if size + cost.saved <= limit:", "if size <= limit:"),
    ),
)

MEMORY = (
    *_of(
        "memory/prediction/live_bytes.py",
        PREDICTION,
        (
            "prediction: workspaces of kernels forgotten",
            "inside = self.hidden(func, args, kwargs, result) if self.hidden is not None else 0",
            "inside = 0",
        ),
        ("prediction: a freed tensor still counted", "                self.live -= size", "                pass"),
        (
            "prediction: operators of libraries not followed",
            "function = self._about(func).function",
            "function = None",
        ),
    ),
    *_of(
        "memory/prediction/repeats.py",
        PREDICTION,
        (
            "prediction: a block's run reused for another one",
            "key = (self.likeness, tuple(",
            "key = (len(self.likeness), tuple(",
        ),
        ("prediction: operations of repeated blocks left out", "    tracker.work.update(course.work)\n", ""),
        (
            "prediction: a block that asks for free memory is not asked again",
            "if questions != repeats.questions or tracker.live",
            "if tracker.live",
        ),
    ),
    *_of(
        "memory/prediction/predict.py",
        PREDICTION,
        ("prediction: what cuBLAS keeps left out", "constant=workspaces.constant(card)", "constant=0"),
    ),
    *_of(
        "memory/prediction/fused_attention.py",
        PREDICTION,
        (
            "prediction: flash attention thought to take masks",
            "if mask is not None or width > WIDEST_FLASH else None",
            "if width > WIDEST_FLASH else None",
        ),
    ),
    *_of(
        "memory/prediction/workspace.py",
        "unit/test_calibration.py host/test_calibration.py",
        (
            "calibration: what was measured is not used",
            "        if known is not None:\n            return known\n",
            "",
        ),
    ),
    *_of(
        "memory/prediction/calibration.py",
        "unit/test_calibration.py host/test_calibration.py",
        (
            "calibration: earlier measurements of a card lost",
            "{**before.convolutions, **found.convolutions}",
            "found.convolutions",
        ),
        ("calibration: the smallest convolutions first", "key=_elements, reverse=True)", "key=_elements)"),
    ),
    *_of(
        "memory/prediction/forecast.py",
        "unit/test_prediction.py unit/test_memory_bar.py host/test_estimate_cli.py",
        (
            "forecast: tiles promised where RAM ends",
            "() if self.lacks_ram else self.too_big()",
            "self.too_big()",
        ),
        ("forecast: tiles promised for one of several", "all(stage.or_tiles for stage", "any(stage.or_tiles for stage"),
        (
            "forecast: exactly full does not fit",
            "if self.least > self.allowed or",
            "if self.least >= self.allowed or",
        ),
        (
            "forecast: the largest layer left out of the least",
            "return self.least_weights + self.activations",
            "return self.activations",
        ),
        (
            "forecast: memory of the machine not asked",
            " or self.lacks_ram:",
            ":",
        ),
        (
            "forecast: decoded frames take no memory of the machine",
            "self.ram_needed + self.ram_frames > self.ram",
            "self.ram_needed > self.ram",
        ),
    ),
    *_of(
        "host/planning/behind.py",
        "host/test_estimate_cli.py",
        ("sizes: the one that takes least", "_activations(other, card) > _a", "_activations(other, card) < _a"),
    ),
    *_of(
        "graph/fit/behind.py",
        "unit/test_fit_sizes.py host/test_out_of_memory.py",
        ("sizes: behind another plan as well", ' or prompt[number]["class_type"] == FIT:', ":"),
        ("sizes: a sum of nothing", "json.dumps([asked, latents_alone(prompt, asked)]", "json.dumps([asked]"),
    ),
    *_of(
        "vae/exact/planned.py",
        "host/test_streaming.py",
        ("exact VAE: a plan draws the noise of the decode", "self.recorder.draws = False", "pass"),
    ),
    *_of(
        "host/vae/strips.py",
        "host/test_exact_vae.py",
        (
            "exact VAE: noise is drawn anew where memory ran out",
            "            draw_again()  # the noise",
            "            # the noise",
        ),
    ),
    *_of(
        "host/prediction/host_answers.py",
        "host/test_beside_models.py",
        (
            "prediction: a ControlNet's first step loads models",
            '{"load_models_gpu": lambda *_, **__: None, ',
            "{",
        ),
    ),
    *_of(
        "memory/prediction/card.py",
        "unit/test_plans.py host/test_time.py",
        (
            "time: the host's own streaming hides all copies",
            "hidden = 1.0 if prefetched else HOST_HIDES if self.is_cuda else 0.0",
            "hidden = 1.0",
        ),
    ),
    *_of(
        "memory/prediction/plans.py",
        "unit/test_plans.py host/test_time.py",
        (
            "fit: what goes through the staging is not copied",
            "return replace(self.stage, budget=budget, staging=staging)",
            "return replace(self.stage, budget=budget)",
        ),
    ),
    *_of(
        "memory/prediction/plans.py",
        "host/test_seedvr.py",
        ("fit: refused for a VAE that the host tiles", "self.settings is None and self.stage.or_tiles", "False"),
    ),
    *_of(
        "host/following/stages/sampling.py",
        "host/test_fit.py",
        ("an estimate promises tiles behind a refusal", "found.refused = True", "found.refused = False"),
    ),
    *_of(
        "host/following/stages/coding.py",
        "host/test_seedvr.py",
        (
            "a tiled node's tiles left out of a VAE that has its own",
            "not works_in_less(vae)",
            '"headroom_settings" not in vars(vae)',
        ),
    ),
    *_of(
        "memory/prediction/plans.py",
        "unit/test_plans.py host/test_fit.py",
        (
            "fit: a lossy way where an exact one fits",
            "key=lambda plan: (plan.loss, plan.seconds(card, allowed))",
            "key=lambda plan: plan.seconds(card, allowed)",
        ),
        (
            "fit: a budget that stays is thought to give way",
            "(self.stage.peak if self.fixed else self.stage.least) <= allowed",
            "self.stage.least <= allowed",
        ),
    ),
    *_of(
        "memory/runlog.py",
        "unit/test_report.py host/test_report_in_process.py",
        (
            "run log: rows of another graph shown as reused",
            "if other == node and rows and rows[-1].signature == signature:",
            "if other == node and rows:",
        ),
    ),
    *_of(
        "memory/peak.py",
        "unit/test_accelerator.py unit/test_report.py emulator/test_memory.py emulator/test_truth.py",
        (
            "peak: earlier laps forgotten",
            "            meter._highest = max(meter._highest, peak_bytes(device) or 0)\n",
            "            pass\n",
        ),
    ),
    *_of(
        "memory/blocks.py",
        "unit/test_card_figures.py emulator/test_memory.py emulator/test_strips.py",
        ("allocator: what it leaves uncut forgotten", "            uncut += block - size\n", "            pass\n"),
    ),
)

# ------------------------------------------------------------------------------------------------- files of workflows

GRAPHS = (
    *_of(
        "graph/litegraph.py",
        GRAPH,
        ("links: output slot off by one", "str(origin), int(slot or 0), ", "str(origin), int(slot or 0) + 1, "),
        (
            "subgraphs: values of widgets within lost",
            "named, inner = _given(graph, node)",
            "named, inner = _given(graph, node)[0], {}",
        ),
    ),
    *_of(
        "graph/to_api.py",
        GRAPH,
        (
            "widgets shifted behind a seed's control",
            "if has_control(entry) and values and values[0] in CONTROLS:",
            "if has_control(entry) and not values:",
        ),
        ("a list as a widget's value taken for a link", 'return {"__value__": value} if', "return value if"),
    ),
    *_of(
        "graph/sources.py",
        GRAPH,
        (
            "subgraphs: every input gets the first one's link",
            'if entry["name"] == name and entry.get("link") is not None:',
            'if entry.get("link") is not None:',
        ),
        ("muted nodes run", "if mode == MUTED or kind in NOTES:", "if kind in NOTES:"),
        (
            "bypass hands on the first input that fits",
            "if 0 <= slot < len(entries) and fits(entries[slot]):",
            "if slot < 0:",
        ),
        (
            "reroute: what Get names is not found",
            "in SETTERS.values() and first_value(node) == name]",
            "in SETTERS.values() and first_value(node) != name]",
        ),
    ),
    *_of(
        "graph/fit/plan.py",
        GRAPH,
        (
            "fitting twice adds the nodes twice",
            "            if self.seen[number].kind == FIT:\n                return number\n",
            "",
        ),
        (
            "fit: a sampler gets another one's VAE",
            "number not in self.before[sampler] and fit[1] == origin:",
            "number not in self.before[sampler]:",
        ),
    ),
    *_of(
        "graph/fit/cfg_source.py",
        "unit/test_fit_advice.py",
        ("cfg of the graph: the smallest of several", "max(numbers, default=None)", "min(numbers, default=None)"),
        ("cfg of the graph: whoever has the VAE counts", "if slot == MODEL]", "if True]"),
        ("cfg of the graph: whoever has its text encoder counts", "if not name.startswith(CLIP)", "if True"),
        ("cfg of the graph: the next sampler's counts", "kind not in (FIT, GUIDED_SAMPLER)", "kind not in (FIT,)"),
        ("cfg of the graph: the widget's is overruled", 'inputs"].get(SOURCE) == GRAPH', 'inputs"].get(SOURCE) != 1'),
    ),
    *_of(
        "graph/fit/advice.py",
        "unit/test_fit_advice.py",
        ("advice: Make It Fit again where it is already", "if fit is None:", "if True:"),
        ("advice: the machine's memory is taken for a card's", "if of_card else", "if True else"),
    ),
    *_of(
        "host/server/advised.py",
        "host/test_out_of_memory.py",
        ("advice: every error has some", "if not of_card and not _of_the_machine(raised):", "if False:"),
        ("advice: none for a file without room to be mapped", "|cannot allocate memory|", "|"),
    ),
    *_of(
        "graph/fit/insert.py",
        GRAPH,
        ("fit: a node of the workflow overwritten", "1 + max(taken, default=0)", "max(taken, default=0)"),
    ),
    *_of(
        "graph/fit/insert_ui.py",
        GRAPH,
        ("fit: cfg read from its neighbour", '"KSampler": 4, ', '"KSampler": 5, '),
    ),
)

# ------------------------------------------------------------------------------------------------- the rooms of host/

CORE = (
    *_of(
        "host/core/internals.py",
        "host/test_internals.py host/test_import.py",
        (
            "internals: a missing name that costs no node is not said",
            "for internal in INTERNALS if not internal.found]",
            "for internal in INTERNALS if not internal.found and internal.nodes]",
        ),
        (
            "internals: nodes offered without what they need",
            "return frozenset(node for internal in lacking for node in internal.nodes)",
            "return frozenset()",
        ),
    ),
    *_of(
        "host/core/device.py",
        "host/test_low_memory_vae.py host/test_exact_vae.py host/test_estimate_cli.py",
        (
            "budget: the host's reserve ignored",
            "int(total - model_management.extra_reserved_memory())",
            "int(total)",
        ),
    ),
    *_of(
        "host/core/families.py",
        "host/test_local_attention.py",
        (
            "families: the text thought to lie behind the picture",
            "return (before, 0) if before in (0, tokens.text + tokens.extra) else None",
            "return (0, before) if before in (0, tokens.text + tokens.extra) else None",
        ),
    ),
    *_of(
        "host/core/compat.py",
        "host/test_casting.py host/test_compat.py host/test_compare.py",
        (
            "clones of a model stay loaded, their LoRA in its weights",
            "entry.model.model is not model.model]",
            "entry.model is not model]",
        ),
        (
            "running out of memory taken for any other error",
            "        return bool(check(error))",
            "        return False",
        ),
    ),
)

MEASURE = (
    *_of(
        "host/measure/runs.py",
        "host/test_report_in_process.py host/test_prediction.py host/test_attention_in_models.py",
        (
            "run log: live bytes of a row not recorded",
            "            self._row.live = self._tracker.live_peak",
            "            pass",
        ),
        ("run log: a failed run told as done", 'row.outcome = "failed"', 'row.outcome = "done"'),
    ),
    *_of(
        "host/measure/questions.py",
        "host/test_prediction.py host/test_report_in_process.py",
        (
            "questions: the cfg of a sampling forgotten",
            'cfg = float(getattr(guider, "cfg", 1.0))',
            "cfg = 1.0",
        ),
    ),
    *_of(
        "host/measure/readers.py",
        "host/test_server_routes.py host/test_report_in_process.py",
        (
            "tensors followed where no report will tell of them",
            'any(node.get("class_type") == REPORT for node in graph.values())',
            "bool(graph)",
        ),
    ),
)

SAMPLING = (
    *_of(
        "host/sampling/guidance.py",
        "host/test_fit.py",
        ("guidance in turns computed together", "        return math.inf", "        return 0.0"),
    ),
    *_of(
        "host/sampling/one_step.py",
        "host/test_compare.py host/test_casting.py",
        (
            "errors of a step beside the latent look smaller",
            "(x.double() - denoised.double())",
            "(x.double() + denoised.double())",
        ),
    ),
    *_of(
        "host/sampling/conditioning.py",
        "host/test_prediction.py host/test_estimate_cli.py",
        ("a usual prompt without its pooled output", "torch.zeros(1, pooled) if pooled else None", "None"),
    ),
)

OVERRIDES = (
    *_of(
        "host/attention/override.py",
        IN_MODELS,
        (
            "overrides not chained",
            "return self.previous(func, *args, **kwargs)",
            "return func(*args, **kwargs)",
        ),
        ("min_tokens ignored", "if tokens < self.min_tokens:", "if tokens < 0:"),
        (
            "step range ignored",
            "and not self._in_range(options):",
            "and not self.steps:",
        ),
        (
            "block selection ignored",
            "if not self.blocks.holds(place, self._ends_at(options)):",
            "if self.blocks is None:",
        ),
        (
            "an override set behind ours is lost",
            "options[OVERRIDE] = rebased(self.override, top)",
            "options[OVERRIDE] = self.override",
        ),
    ),
    *_of(
        "host/attention/local.py",
        LOCAL,
        (
            "local attention: max_error ignored",
            "if error is not None and error > self.max_error:",
            "if error is not None and error < 0:",
        ),
        (
            "local attention: its error not measured",
            "if errors is not None and error is None:",
            "if errors is not None and error is not None:",
        ),
    ),
    *_of(
        "host/attention/grids.py",
        LOCAL,
        (
            "local attention: a mask dropped",
            '    if call.mask is not None:\n        return "it has a mask"\n',
            "",
        ),
        (
            "local attention: incomplete patches at the border not counted",
            "return tuple(-(-size // step) for",
            "return tuple(size // step for",
        ),
    ),
)

CASTS = (
    *_of(
        "host/casting/quantised.py",
        CASTING,
        (
            "casting: scale half as large, the largest weights clipped",
            ".amax().float() / layout.largest}",
            ".amax().float() / layout.largest / 2}",
        ),
        (
            "casting: rotation not undone",
            "params = dataclasses.replace(first, orig_shape=shape, **joined)",
            'rotated = {"convrot": False} if getattr(first, "convrot", False) else {}\n'
            "    params = dataclasses.replace(first, orig_shape=shape, **joined, **rotated)",
        ),
        (
            "casting: scales of the first rows for all",
            "name: torch.cat(values) for name, values in fields",
            "name: torch.cat([values[0]] * len(values)) for name, values in fields",
        ),
    ),
    *_of(
        "host/casting/layers.py",
        CASTING,
        ("casting: keep dropped", "if reason is None and layer.group in keep:", "if layer.group is None:"),
    ),
    *_of(
        "host/casting/independent.py",
        CASTING,
        (
            "casting: LoRA not applied",
            "    result.hook_backup = {}\n",
            "    result.hook_backup = {}\n    result.patches = {}\n",
        ),
        (
            "casting: the copy shares the host's notes of patches",
            r"|(weight|bias)_function|seed_key",
            r"|seed_key",
        ),
    ),
    *_of(
        "host/casting/cast.py",
        CASTING,
        ("casting: original mutated", "result = independent(model)", "result = model.clone()"),
        (
            "cache file: its key forgets skip and compute",
            'repr(replace(settings, cache_file=""))',
            "settings.storage",
        ),
        (
            "casting: the dtype that is computed in is not set",
            "        _set_compute(result, caster.compute)\n",
            "        pass\n",
        ),
    ),
    *_of(
        "host/casting/cache_file.py",
        CASTING,
        (
            "cache file: weights that were kept are not read back",
            "                _set_parameter(network, key, state[key])",
            "                pass",
        ),
    ),
    *_of(
        "host/casting/sensitivity.py",
        CASTING,
        (
            "sensitivity: what was measured is not kept in full",
            "cast_model(model, replace(settings, keep=keep))",
            "cast_model(model, settings)",
        ),
        (
            "sensitivity: measurements of another storage used again",
            "settings.storage, settings.compute, settings.skip)",
            "settings.compute, settings.skip)",
        ),
    ),
)

BUDGETS = (
    *_of(
        "host/offload/budget.py",
        "host/test_offload.py emulator/test_offload.py",
        (
            "offload: budget ignored by the loader",
            "extra_memory = min(extra_memory, budget.loadable - self.loaded_size())",
            "extra_memory = min(extra_memory, self.model_size())",
        ),
        (
            "offload: staging left out of what may be loaded",
            "extra_memory = max(0, extra_memory - budget.staging)",
            "extra_memory = max(0, extra_memory)",
        ),
        (
            "offload: clones lose the budget",
            "set_budget(copy, budget_of(self))",
            "set_budget(copy, None)",
        ),
        (
            "offload: layers that are to be streamed stay loaded",
            "if loaded <= budget.loadable and not _loaded_besides(self, budget):",
            "if loaded <= budget.loadable:",
        ),
    ),
    *_of(
        "host/offload/host_internals.py",
        "host/test_offload.py emulator/test_offload.py",
        (
            "offload: resident layers loaded last",
            "(entry[-3] in self._resident, *entry[:-2])",
            "(entry[-3] not in self._resident, *entry[:-2])",
        ),
    ),
    *_of(
        "host/offload/offloaded_sampling.py",
        "host/test_offload.py emulator/test_offload.py",
        (
            "offload: weights that the host exchanged are streamed as they were",
            "if self._prefetch is None or not self._prefetch.is_current():",
            "if self._prefetch is None:",
        ),
    ),
    *_of(
        "host/offload/block_offload.py",
        "host/test_offload.py host/test_fit.py",
        ("offload: 0 does not lift a budget", "    set_budget(result, None)\n", ""),
    ),
)

VAES = (
    *_of(
        "host/vae/geometry.py",
        "host/test_low_memory_vae.py host/test_exact_vae.py",
        (
            "batch: every picture of a slice is its first",
            "                out[start : start + step] = part\n",
            "                out[start : start + step] = part[:1]\n",
        ),
        (
            "edges: as if none were mirrored",
            "    return 1 + max(mirrored, default=0)\n",
            "    return 1\n",
        ),
    ),
    *_of(
        "host/vae/directions.py",
        "host/test_low_memory_vae.py host/test_exact_vae.py",
        (
            "encode: a video's frames taken for pictures",
            "x.movedim(1, 0).unsqueeze(0)",
            "x.unsqueeze(2)",
        ),
    ),
    *_of(
        "host/vae/room.py",
        "host/test_exact_vae.py host/test_low_memory_vae.py emulator/test_strips.py",
        (
            "budget: the VAE's weights left out",
            "return self.budget() - self.weights()",
            "return self.budget()",
        ),
    ),
    *_of(
        "host/streaming/source.py",
        "host/test_streaming.py host/test_video_files.py",
        ("streaming: frames that are there are handed on again", "        if known < frames:\n", "        if True:\n"),
        (
            "streaming: what is missing begins a piece late",
            "self._take(piece[:, :, known:])",
            "self._take(piece[:, :, known + 1 :])",
        ),
    ),
    *_of(
        "host/chunks/chunks.py",
        "host/test_streaming.py host/test_video_files.py",
        (
            "streaming: the module's cache is not put back",
            "        chunks.keep(kept)",
            "        dict(kept)",
        ),
        ("streaming: a chunk's words are not kept", "        if isinstance(entry, str):", "        if False:"),
    ),
    *_of(
        "host/streaming/windows.py",
        "host/test_streaming.py",
        ("streaming: windows begin at the video's first frame", "onward.begin(begun)", "onward.begin(0)"),
    ),
    *_of(
        "host/chunks/ltx.py",
        "host/test_video.py host/test_streaming.py",
        ("ltx: the last chunk goes on as the others", "self.done == len(self.borders) - 1", "False"),
        ("ltx: layers keep their states", "STATE).pop(thread, None)", "STATE).get(thread)"),
        (
            "ltx: what is kept is a view of its map",
            "entry.clone() if isinstance",
            "entry if isinstance",
        ),
        ("ltx: nothing waits in a block", "block, convolutions, block.stride[0]", "block, 0, block.stride[0]"),
        ("ltx: no noise before the chunks", "x.lerp(torch.randn_like(x), ", "x.lerp(x, "),
        ("ltx: the last norm is not told of the step", "super().normed(x) * (1 + scale) + shift", "super().normed(x)"),
    ),
    *_of(
        "host/chunks/continued.py",
        "host/test_video.py host/test_streaming.py",
        ("continued: each chunk begins anew", "next(self._found) if self.done else x", "x"),
        ("continued: a map is kept whole", "x[:, :, -frames:].clone()", "x[:, :, -frames:]"),
    ),
    *_of(
        "host/chunks/mochi.py",
        "host/test_video.py",
        (
            "mochi: each chunk's first frame is the video's",
            "x if self.done or times == 1 else",
            "x if times == 1 else",
        ),
    ),
    *_of(
        "host/chunks/cosmos.py",
        "host/test_video.py",
        ("cosmos: frames see those behind them", "is_causal=True", "is_causal=False"),
        ("cosmos: every chunk's first frame comes once", "0 if self.done else 1 :]", "1:]"),
        ("cosmos: the first frame is not repeated", "x if self.done else torch.cat([x[:, :, :1], x], 2)", "x"),
    ),
    *_of(
        "host/video/along.py",
        "host/test_video.py host/test_streaming.py",
        ("along: chunks are not tried", 'if along == "rows" and chunks is not None:', "if False:"),
    ),
    *_of(
        "host/video/sink.py",
        "host/test_streaming.py",
        ("sink: frames without what is in them", "self._take(frames)", "self._take(frames * 0)"),
    ),
    *_of(
        "host/chunks/tiny.py",
        "host/test_streaming.py",
        ("tiny: a memory block sees its own frame", "self.cache[at] = frame.clone()", "self.cache[at] = frame * 0"),
        ("tiny: a few frames are not filled up", "(self.model.t_downscale - len(frames))", "0"),
        ("tiny: frames before the first are kept", "0 if self.done else model.frames_to_trim :", "0:"),
    ),
    *_of(
        "vae/exact/running/carried.py",
        "host/test_video.py host/test_streaming.py emulator/test_video_files.py",
        ("carried: a piece goes before all of its rows came", "        if stop < end:\n            return None\n", ""),
        (
            "carried: nothing waits for what leaves",
            "            self.parking.left(self.on_their_way.pop())",
            "            self.on_their_way.pop()",
        ),
    ),
    *_of(
        "host/streaming/strips.py",
        "host/test_streaming.py",
        (
            "streaming: the module itself whatever the budget",
            "    if found is None or found.activations > coder.room.for_work():",
            "    if found is None:",
        ),
    ),
    *_of(
        "host/streaming/several.py",
        "host/test_streaming.py",
        ("streaming: every video of a batch is the first", "self.sources(number)", "self.sources(0)"),
    ),
    *_of(
        "host/video_files/to_file.py",
        "host/test_video_files.py",
        ("to a file: another format goes on with what is there", "    notes = (encoding.form.name, ", "    notes = ("),
        (
            "to a file: noise of two decodes in one file",
            "            writing.segments.forget()\n",
            "            pass\n",
        ),
    ),
    *_of(
        "host/video_files/segments.py",
        "host/test_video_files.py",
        (
            "to a file: pictures on their way are looked for where they were",
            "            if (self.journal.folder / name).exists():",
            "            if True:",
        ),
        (
            "to a file: states are not kept",
            "        return None if state is None or ANEW in state else state",
            "        return None",
        ),
    ),
    *_of(
        "host/video_files/from_file.py",
        "host/test_video_files.py",
        (
            "from a file: frames are not brought to size",
            "            yield self.resizing.of(window)\n",
            "            yield window\n",
        ),
        (
            "from a file: a chunk's last frame is the next one's first",
            "together[: stop - start], together[stop - start :]",
            "together[: stop - start], together[stop - start - 1 :]",
        ),
    ),
    *_of(
        "host/video_files/output.py",
        "host/test_video_files.py",
        (
            "to a file: a prefix leads out of the output folder",
            "    if not inside.is_relative_to(os.path.abspath(root)):",
            "    if False:",
        ),
        (
            "to a file: the longest name that its ending has no room for",
            'LONGEST_ENDING = "webm.part"',
            'LONGEST_ENDING = ""',
        ),
    ),
    *_of(
        "host/chunks/hunyuan.py",
        "host/test_video.py host/test_streaming.py",
        (
            "chunks: Hunyuan's convolutions see nothing of the frames before",
            "        found = list(self.cache or ()) if self.done else None\n",
            "        found = None\n",
        ),
        ("chunks: Hunyuan 1.0 lacks its last convolution but one", "self.model.quant_conv(self.end(x))", "self.end(x)"),
    ),
    *_of(
        "host/streaming/host_chunks.py",
        "host/test_video_files.py",
        (
            "chunks: disk for maps of all frames is not asked for beforehand",
            "        require_disk(self._begun().held(self.latent.shape), self.vae.vae_dtype)\n",
            "",
        ),
    ),
    *_of(
        "host/chunks/cogvideo.py",
        "host/test_video.py host/test_streaming.py",
        ("chunks: CogVideoX begins with eight frames", "range(frames % step, frames, step)", "range(0, frames, step)"),
        ("chunks: CogVideoX lengthens the first frame too", "    if frames > 1 and frames % 2:\n", "    if False:\n"),
    ),
    *_of(
        "vae/exact/running/all_frames.py",
        "host/test_video.py",
        ("chunks: each is put where the first was", "        self.done += frames\n", "        self.done = frames\n"),
    ),
    *_of(
        "vae/exact/running/pages.py",
        "unit/test_exact_vae.py host/test_streaming.py",
        (
            "a free page waits for the garbage collector, with the maps of a part",
            "        self.is_over = True\n        self.free.clear()\n",
            "",
        ),
        (
            "a plan counts maps in a file as if they were in memory",
            "                del self.slabs[page]\n\n    def pieces",
            "                pass\n\n    def pieces",
        ),
    ),
    *_of(
        "vae/exact/runner.py",
        "unit/test_exact_vae.py",
        ("a file waits for the garbage collector", "        self.kernels.far = None", "        pass"),
    ),
    *_of(
        "vae/exact/running/arena.py",
        "unit/test_exact_vae.py",
        ("pieces of a file overlap", "self.rest[-(-size // ALIGNED) * ALIGNED :]", "self.rest[ALIGNED:]"),
    ),
    *_of(
        "vae/exact/planning/search.py",
        "unit/test_exact_vae.py",
        (
            "a CPU recomputes maps though they may lie in a file",
            "            for strip_bytes, outside in product(lower, (False, True)):\n",
            "            for strip_bytes, outside in product(lower, (False,)):\n",
        ),
    ),
    *_of(
        "vae/exact/chunked.py",
        "host/test_streaming.py",
        (
            "all frames of a latent lie on the device",
            "        if one.device != x.device:\n",
            "        x = self.bring(x)\n        if one.device != x.device:\n",
        ),
    ),
    *_of(
        "vae/exact/planned_chunks.py",
        "host/test_streaming.py host/test_video.py",
        (
            "chunks: what sees all frames is never cut along them",
            "        for place in PLACES.values():\n",
            "        for place in (1,):\n",
        ),
    ),
    *_of(
        "host/chunks/wan.py",
        "host/test_video.py",
        (
            "chunks: the first of Wan 2.2 is not told to be one",
            'first = {} if self.done else {"first_chunk": True}',
            "first: dict[str, bool] = {}",
        ),
        (
            "chunks: the last of Wan 2.1 waits for one more",
            '{"final": self.done == len(self.borders) - 1} if self.done else {}',
            '{"final": False} if self.done else {}',
        ),
    ),
    *_of(
        "vae/exact/planning/alike.py",
        "unit/test_alike.py",
        (
            "alike passes: whatever comes out of them",
            "results = tuple((places[node], purpose) for node, purpose in one.results)",
            "results = ()",
        ),
        (
            "alike passes: however weights lie",
            'return "tensor", tuple(value.shape), value.stride(), value.dtype',
            'return "tensor", tuple(value.shape), value.dtype',
        ),
        (
            "alike passes: what they take is kept without an end",
            "while self._slabs > MOST:",
            "while False:",
        ),
    ),
    *_of(
        "vae/exact/planning/planner.py",
        "unit/test_alike.py",
        (
            "alike passes: on whatever device",
            "key = (described, how, self.device.type, self.figures)",
            "key = (described, how)",
        ),
        (
            "alike passes: however what they read lies",
            "how = (rows, read, stored, page_bytes, choice.store)",
            "how = (rows, stored, page_bytes, choice.store)",
        ),
    ),
    *_of(
        "host/vae/strips.py",
        "host/test_exact_vae.py host/test_low_memory_vae.py emulator/test_strips.py",
        (
            "strips: float16 store ignored",
            'torch.float16 if geometry.settings.store == "float16" and dtype.itemsize > 2 else None',
            "None",
        ),
        (
            "strips: results of a batch left out of the budget",
            "self.vae, self.room.for_work() - gathered, half,",
            "self.vae, self.room.for_work(), half,",
        ),
        (
            "strips: a plan is not kept for later decodes",
            ", plans=remembered(module),",
            ",",
        ),
        (
            "strips: where the lowest have no room, a video goes on in no other way",
            "self._turn_to_frames(call, DoesNotFit(int(planned)), NARROWER * planned)",
            "raise DoesNotFit(int(planned))",
        ),
        (
            "strips: a way that needs less begins with its own least",
            "rungs.begin_with(NARROWER * planned)",
            "rungs.rise_to(NARROWER * planned)",
        ),
    ),
    *_of(
        "host/vae/fallback.py",
        "host/test_exact_vae.py host/test_low_memory_vae.py",
        (
            "exact was asked for, tiles came without an error",
            '        if self.settings.method != "auto":\n            raise CannotBeExact(',
            '        if self.settings.method == "feathered":\n            raise CannotBeExact(',
        ),
    ),
    *_of(
        "host/vae/preview.py",
        "host/test_exact_vae.py host/test_over_http.py",
        (
            "strips cannot be cancelled",
            "        model_management.throw_exception_if_processing_interrupted()\n        picture = None",
            "        picture = None",
        ),
    ),
    *_of(
        "host/vae/tiles.py",
        TILES,
        ("feathered: overlap ignored", "overlap = math.ceil(wanted.overlap / spatial)", "overlap = 0"),
        (
            "feathered: frames asked for rounded down to cells",
            "math.ceil((size - first) / per_cell) + 1",
            "(size - first) // per_cell",
        ),
    ),
)

PREDICTIONS = (
    *_of(
        "host/prediction/host_answers.py",
        f"{PREDICTION} {ESTIMATE}",
        (
            "prediction: the card's reserve ignored",
            "max(card.seen - card.reserved - live, LEAST_FREE)",
            "max(card.seen - live, LEAST_FREE)",
        ),
        (
            "prediction: every thread gets its answers",
            '(function if getattr(here, "inside", False) else true)',
            "(function if here else true)",
        ),
    ),
    *_of(
        "host/prediction/kept.py",
        f"host/test_kept.py {PREDICTION}",
        (
            "kept prediction: whether there is guidance not in the key",
            "step.cfg == 1.0, step.together,",
            "step.together,",
        ),
        ("kept prediction: guidance together not in the key", "step.cfg == 1.0, step.together,", "step.cfg == 1.0,"),
        (
            "kept prediction: the mask not in the key",
            "described(step.latent), described(step.mask),",
            "described(step.latent),",
        ),
        ("kept prediction: the negative not in the key", " _conditions(step.negative),", ""),
        (
            "kept prediction: a VAE's settings not in the key",
            'described(getattr(vae, "headroom_settings", None)), ',
            "",
        ),
        ("kept prediction: the budget not in the key", "(type(model), budget_of(model), ", "(type(model), "),
        ("kept prediction: a CLIP's layer not in the key", "clip.layer_idx,", ""),
        (
            "kept prediction: dtypes not in the key",
            "return (Tensor, tuple(value.shape), value.dtype)",
            "return (Tensor, tuple(value.shape))",
        ),
    ),
    *_of(
        "host/prediction/step.py",
        PREDICTION,
        ("prediction: one of the sampler's latents forgotten", "SAMPLER_LATENTS = 5", "SAMPLER_LATENTS = 4"),
        (
            "prediction: the negative counted where cfg is 1",
            "                    asked[1] = None",
            "                    pass",
        ),
        (
            "prediction: of steps with different nodes the lightest",
            "return max((_with_or_without_masks",
            "return min((_with_or_without_masks",
        ),
        (
            "prediction: blocks with patches of their own taken to be alike",
            "stand_in.repeats.allowed = _treats_blocks_alike(model)",
            "stand_in.repeats.allowed = True",
        ),
    ),
    *_of(
        "host/planning/rows.py",
        "host/test_prediction.py host/test_report_in_process.py",
        (
            "a guess told as a prediction",
            "if stage is not None and not stage.doubt:",
            "if stage is not None:",
        ),
    ),
    *_of(
        "host/prediction/stages.py",
        f"{PREDICTION} {ESTIMATE} host/test_fit.py",
        (
            "card: the memory that was asked for ignored",
            "total = int(vram_gb * GB) if vram_gb else found",
            "total = found",
        ),
        (
            "forecast: a model's budget ignored",
            "        staging if streams_everything() else None if budget is None else budget.weights + more,\n",
            "        staging if streams_everything() else None,\n",
        ),
        (
            "forecast: without VRAM the weights stay on the card all the same",
            "        staging if streams_everything() else None if budget is None else budget.weights + more,\n",
            "        None if budget is None else budget.weights + more,\n",
        ),
        (
            "forecast: a low-memory VAE takes all of the card, whatever may be used",
            "if found.peak <= allowed:",
            "if not found.peak:",
        ),
    ),
    *_of(
        "host/measure/calibrated.py",
        "host/test_calibration.py",
        (
            "calibration of this machine's card used for another",
            "return key if key.card == card.name else None",
            "return key",
        ),
        (
            "calibration: the file is not read",
            "return DOCUMENTED if found is None else found.workspaces()",
            "return DOCUMENTED",
        ),
        (
            "calibration: strips are planned without what was measured",
            "workspaces.convolution, workspaces.pointwise_convolution, measured)",
            "workspaces.convolution, workspaces.pointwise_convolution)",
        ),
    ),
)

PLANNING = (
    *_of(
        "host/planning/fit.py",
        "host/test_fit.py unit/test_plans.py",
        (
            "fit: exact strips left out of the ways to decode",
            '    ({"method": "exact"}, Loss.EXACT),\n    ({"method": "exact", "store": "float16"}, Loss.NEAR_EXACT),\n',
            "",
        ),
        (
            "fit: quality ignored in casting",
            "if loss <= most and (lacking := ",
            "if (lacking := ",
        ),
        (
            "fit: quality ignored in decoding",
            "        if loss > most:\n            return\n",
            "",
        ),
        (
            "fit: guidance in turns not applied",
            "return guide_in_turns(result) if in_turns else result.clone()",
            "return result.clone()",
        ),
        (
            "fit: the budget for the weights not applied",
            "    if budget is not None:\n",
            "    if budget is not None and plan.fixed:\n",
        ),
        ("fit: its limit ignored", "int(limit * card.total)", "card.total"),
    ),
    *_of(
        "host/planning/compare.py",
        "host/test_compare.py unit/test_comparison.py",
        (
            "compare: each row against the one before",
            "reference = velocity if number == 0 else reference",
            "reference = velocity",
        ),
        (
            "compare: a fallback told as the backend",
            "    if not calls[backend]:\n        raise NotHere(next(iter(reasons.values())))\n",
            "",
        ),
    ),
    *_of(
        "host/planning/step_meter.py",
        "host/test_compare.py",
        ("compare: weights counted as the step's", "    tracker.leave_out(given)\n", ""),
    ),
    *_of(
        "host/planning/report.py",
        "host/test_report_in_process.py host/test_prediction.py",
        (
            "report: failed rows predicted",
            'if row.outcome != "done" or row.predicted is not None or',
            "if row.predicted is not None or",
        ),
        (
            "report: results of other widgets shown as reused",
            '(n, graph.get_node(n)["class_type"], graph.get_node(n)["inputs"]) for',
            '(n, graph.get_node(n)["class_type"]) for',
        ),
    ),
)

WORKFLOWS = (
    *_of(
        "host/following/stages/sampling.py",
        f"host/test_workflow_files.py {ESTIMATE}",
        (
            "estimate: the card of Make It Fit ignored",
            "card = found.card if not asked.vram_gb else replace(found.card, total=int(asked.vram_gb * GB))",
            "card = found.card",
        ),
        (
            "estimate: a guider without cfg guides",
            'inputs.number("cfg") if asked.guided else 1.0)',
            'inputs.number("cfg") if asked.guided else 8.0)',
        ),
    ),
    *_of(
        "host/following/stages/seedvr.py",
        "host/test_seedvr.py",
        (
            "dry run: a video in parts stays as short as one part",
            "frames = latent.pop(WHOLE, part.shape[2])",
            "frames = part.shape[2]",
        ),
    ),
    *_of(
        "host/following/stages/networks.py",
        "host/test_networks.py",
        (
            "dry run: what SAM 3 refines is as large as its detector's box, of which nothing is known",
            "torch.tensor([0.0, 0.0, width, height])",
            "box",
        ),
        (
            "dry run: a network that stays on the CPU is counted on the card",
            "device = None if patcher is not None else",
            "device = None if True else",
        ),
        (
            "dry run: what scales pictures up is predicted without the host's tiles",
            "as counted, answering({}), one_of_each_tile():",
            "as counted, answering({}):",
        ),
    ),
    *_of(
        "host/prediction/vae.py",
        "host/test_networks.py",
        (
            "prediction: the settings of a shape's decode are left out",
            '{"vae_options": coding.options}',
            "{}",
        ),
    ),
    *_of(
        "memory/prediction/assumed.py",
        "unit/test_assumed.py",
        (
            "prediction: of unknown data nothing is kept",
            "torch.empty((mask.numel(), mask.ndim)",
            "torch.empty((0, mask.ndim)",
        ),
    ),
    *_of(
        "host/prediction/host_answers.py",
        "host/test_networks.py",
        (
            "prediction: audio encoders attend as on this machine",
            "stack.enter_context(replaced(module, name, torchs))",
            "pass",
        ),
    ),
    *_of(
        "host/following/files.py",
        "host/test_following.py",
        (
            "dry run: a start before zero is taken for the video's beginning",
            "start = max(0.0, length + start) if start < 0 else start",
            "start = max(0.0, start)",
        ),
    ),
    *_of(
        "host/following/stages/sampling.py",
        "host/test_following.py",
        (
            "dry run: the nested style leaves the negative out",
            'math.inf if inputs.get("style") == NESTED else cfg',
            "cfg",
        ),
    ),
    *_of(
        "host/following/stages/encoders.py",
        "host/test_following.py",
        (
            "dry run: a text that is written is not told from one that is encoded",
            ', method="written"',
            "",
        ),
    ),
    *_of(
        "host/prediction/conditions.py",
        "host/test_prediction.py",
        (
            "masks that hide nothing are unknown",
            "one[MASK] = IdleMask(mask.shape, mask.dtype, mask.device)",
            "one[MASK] = mask",
        ),
    ),
    *_of(
        "host/following/findings.py",
        f"host/test_workflow_files.py {ESTIMATE}",
        (
            "estimate: of equal stages the smallest counts",
            "max(stage, other, key=lambda one: (one.peak, one.ram))",
            "min(stage, other, key=lambda one: (one.peak, one.ram))",
        ),
        (
            "dry run: pictures that no machine holds are followed",
            "tensor.numel() > MOST_VALUES or ",
            "",
        ),
    ),
    *_of(
        "host/workflow/dry_run.py",
        f"host/test_workflow_files.py {ESTIMATE}",
        (
            "estimate: neutral nodes make it incomplete",
            "return not {kind for kind in kinds if not is_neutral(kind)}",
            "return not kinds",
        ),
    ),
    *_of(
        "host/catalogue/entries.py",
        "host/test_catalogue.py",
        (
            "catalogue: matrices that a quantised file keeps in 16 bits are in 8",
            "result.update(stored(of_part, way, self.kept, self.tables))",
            "result.update(stored(of_part, way, (), self.tables))",
        ),
        (
            "catalogue: a file of several types is as small as if all of it were quantised",
            "frozenset(to_lift(shapes, result, lacking))",
            "frozenset()",
        ),
    ),
    *_of(
        "host/catalogue/stored.py",
        "host/test_catalogue.py",
        (
            "catalogue: tables of embeddings are quantised",
            "its_way = tables if name.endswith(TABLES) else way",
            "its_way = way",
        ),
    ),
    *_of(
        "host/catalogue/stored.py",
        "host/test_public_networks.py",
        (
            "catalogue: matrices of experts are not quantised",
            "len(shape) == 2 or (len(shape) == 3 and EXPERTS in name)",
            "len(shape) == 2",
        ),
        (
            "catalogue: every layer has scales of its input beside it",
            "if layer.endswith(SCALED_INPUTS):",
            "if layer:",
        ),
    ),
    *_of(
        "host/prediction/host_answers.py",
        "host/test_prediction.py",
        (
            "prediction: tokens share their experts evenly, so that each gets half of them",
            "torch.arange(experts, device=chosen.device).repeat(tokens, 1)",
            "torch.arange(tokens * experts, device=chosen.device).view(tokens, experts) % (2 * experts)",
        ),
    ),
    *_of(
        "host/sampling/autoregressive.py",
        "host/test_prediction.py",
        (
            "prediction: of a video the keys and values of one block are kept",
            "length * a_frame, x.device",
            "frames * a_frame, x.device",
        ),
    ),
    *_of(
        "host/prediction/step.py",
        "host/test_prediction.py",
        (
            "prediction: what a patch keeps from step to step stays without data",
            'getattr(self.patcher, "model_patches_call_function", tuple)()',
            "pass",
        ),
    ),
    *_of(
        "host/following/stages/sampling.py",
        "host/test_following_models.py",
        (
            "dry run: of two models that guide the weights of one count",
            "weights = stage.weights + other.weights",
            "weights = stage.weights",
        ),
        (
            "dry run: guidance by two models that is off loads both",
            "other = None if cfg == 1.0 else",
            "other =",
        ),
    ),
    *_of(
        "host/workflow/estimate.py",
        "host/test_templates_table.py",
        (
            "estimate: what was not followed is taken to take no memory",
            '"; ".join([*_not_followed(run), *rest]), run.complete)',
            '"; ".join([*_not_followed(run), *rest]), True)',
        ),
    ),
    *_of(
        "host/prediction/header_loading.py",
        "host/test_catalogue.py",
        (
            "catalogue: an entry goes before the file on disk",
            "file = public_file(filename, folder_name) if found is None else None",
            "file = public_file(filename, folder_name)",
        ),
    ),
    *_of(
        "graph/switches.py",
        "unit/test_switches.py",
        (
            "a switch gives the branch that is not chosen",
            'BRANCHES = {True: "on_true", False: "on_false"}',
            'BRANCHES = {False: "on_true", True: "on_false"}',
        ),
        (
            "nodes that do not run count",
            "for number, node in prompt.items() if number in running}",
            "for number, node in prompt.items()}",
        ),
    ),
    *_of(
        "host/workflow/running.py",
        "host/test_what_runs.py",
        (
            "what nobody here knows is not run, though it may save",
            "return number not in read if kind is None",
            "return False if kind is None",
        ),
        (
            "which outputs were asked for is nothing to admission",
            "if is_end(number) and number in wanted]",
            "if is_end(number)]",
        ),
    ),
    *_of(
        "memory/prediction/known_numbers.py",
        "unit/test_known_numbers.py",
        (
            "numbers that were written over are taken for known",
            "if changed and self._computed(func, args, kwargs) is None:",
            "if False:",
        ),
        (
            "a text of zeros is taken for one that was written",
            "0 if has_stated_zeros(args[0]) else args[0].numel()",
            "args[0].numel()",
        ),
        (
            "numbers that are given go no further than others",
            "most = MOST_GIVEN if given else self._most",
            "most = self._most",
        ),
    ),
    *_of(
        "host/following/sounds.py",
        "host/test_sound.py",
        (
            "dry run: sounds put together stay at the lower rate",
            "highest = max(rate for _, rate in pair)",
            "highest = min(rate for _, rate in pair)",
        ),
        (
            "dry run: the name of a sound may lead out of ComfyUI's folders",
            'if is_there(inputs, "audio"):',
            'if folder_paths.exists_annotated_filepath(str(inputs["audio"])):',
        ),
    ),
    *_of(
        "host/following/stages/audio.py",
        "host/test_sound.py",
        (
            "dry run: a sound in tiles is decoded in one piece",
            'tiles = {"tile_x": side,',
            'unused = {"tile_x": side,',
        ),
    ),
    *_of(
        "host/following/stages/codes.py",
        "host/test_sound.py",
        (
            "dry run: the last code attends to no more than the second",
            "whole = kept[0][0].shape[2]",
            "whole = kept[0][2] + 1",
        ),
    ),
    *_of(
        "host/core/latents.py",
        "host/test_ltx.py",
        (
            "step: of several latents the first alone counts",
            "return torch.Size((shapes[0][0], 1, sum(math.prod(shape[1:]) for shape in shapes)))",
            "return torch.Size((shapes[0][0], 1, math.prod(shapes[0][1:])))",
        ),
        (
            "step: a mask hides nothing",
            "        return mask.cpu()",
            "        return torch.ones(mask.shape)",
        ),
    ),
    *_of(
        "host/prediction/host_answers.py",
        "host/test_ltx.py",
        (
            "a prediction leaves tensors without data in what the host keeps",
            "inspect.unwrap(cached)",
            "cached.__wrapped__",
        ),
    ),
    *_of(
        "host/following/stages/ltx.py",
        "host/test_ltx.py",
        (
            "dry run: a sound is encoded at the rate of its file",
            "samples = resampled(waveform.shape[2], rate, vae.audio_sample_rate)",
            "samples = waveform.shape[2]",
        ),
        (
            "dry run: of a video and its sound the video is decoded to sound",
            'parts_of(inputs.latent("samples")["samples"])[-1]',
            'parts_of(inputs.latent("samples")["samples"])[0]',
        ),
    ),
    *_of(
        "host/workflow/estimate.py",
        ESTIMATE,
        (
            "estimate: what was not followed is ignored",
            "unknown, run.complete, run.stages_followed, absent)",
            "unknown, True, run.stages_followed, absent)",
        ),
        (
            "an estimate writes a cache file",
            '"cache_file": lambda value: True,',
            '"cache_file": lambda value: not value,',
        ),
    ),
    *_of(
        "host/core/given.py",
        f"host/test_given.py {SERVER}",
        (
            "given: numbers outside a node's range are taken",
            "return None if least <= value <= most else",
            "return None if value == value else",
        ),
        ("given: what a choice brings is not checked", "yield from _given(chosen(entry, choice), brought)", "pass"),
        (
            "given: a latent of another model is sampled",
            "if samples.shape[1] != form.latent_channels and not _is_empty(samples):",
            "if samples.shape[1] != form.latent_channels and _is_empty(samples):",
        ),
    ),
    *_of(
        "offload/safetensors_header.py",
        "unit/test_safetensors_header.py",
        ("header: overlapping tensors are read", "if entry.first != end:", "if entry.first > end:"),
        (
            "header: a tensor's bytes are not those of its shape",
            "bits != 8 * (last - first)",
            "bits < 8 * (last - first)",
        ),
    ),
    *_of(
        "training/chain.py",
        "unit/test_training_plans.py",
        (
            "plans: what goes into the next block is held beside its gradient",
            "            self.held -= self.chain[last].given  # what goes",
            "            # what goes",
        ),
        ("plans: what a block would give is kept when it runs again", "is_last * self.released", "0"),
        ("plans: a block's gradient is not counted", "self._see(block.given + into +", "self._see(into +"),
        ("plans: a checkpoint in RAM stays on the device", "self.held -= self._copied_meanwhile()", "pass"),
        (
            "plans: gradients that come are there from the first",
            "missing = [ahead + less for less in accumulate(block.learnt for block in chain)]",
            "missing = [0] * len(chain)",
        ),
        (
            "plans: a first run copies nothing",
            "return self.saved + self.entering + self.forward_work",
            "return self.saved + self.forward_work",
        ),
    ),
    *_of(
        "training/checkpoint.py",
        "unit/test_training_checkpoints.py",
        (
            "checkpoints: what was changed in place is taken for what the block gave",
            "output() is leaf and version_of(leaf) == version",
            "output() is leaf",
        ),
        (
            "checkpoints: what is filled again stays",
            "            self.value = None\n        return",
            "            pass\n        return",
        ),
        (
            "checkpoints: a kept tensor that was written to is taken",
            "return self.value is not None and version_of(self.value) == self._version",
            "return self.value is not None",
        ),
        (
            "checkpoints: all behind one is filled at once",
            "                place.segment = inner",
            "                place.fill(tensor)",
        ),
    ),
    *_of(
        "training/in_ram.py",
        "unit/test_training_checkpoints.py emulator/test_training_in_ram.py",
        ("checkpoints in RAM: what has come back stays", "ticket.arriving = ticket.arrived = None", "pass"),
        ("checkpoints in RAM: what blocks share goes once for each", "self._known[id(tensor)] = (", "_ = ("),
        ("checkpoints in RAM: nobody waits for them", "self._now().wait_event(ticket.arrived)", "pass"),
        ("checkpoints in RAM: they are copied before they are computed", "self._out.wait_stream(self._now())", "pass"),
    ),
    *_of(
        "training/optimal.py",
        "unit/test_training_plans.py",
        (
            "plans: with checkpoints in RAM no block is kept",
            "for kept in reversed(range(count + 1)):",
            "for kept in (0,):",
        ),
    ),
    *_of(
        "offload/brought.py",
        "emulator/test_training_streamed.py",
        ("brought weights: nobody waits for them", "self._staging.ready(self._staged[id(each)])", "pass"),
    ),
    *_of(
        "training/surroundings.py",
        "unit/test_training_checkpoints.py",
        ("checkpoints: a run again has random numbers of its own", "torch.set_rng_state(self.random)", "pass"),
    ),
    *_of(
        "offload/whole.py",
        "host/test_offload.py host/test_casting.py",
        (
            "weights of another pack's class are copied as bytes",
            "return type(weight) in PLAIN or is_traceable_wrapper_subclass(weight)",
            "return True",
        ),
    ),
    *_of(
        "offload/structure.py",
        "unit/test_casting.py",
        ("a copied weight loses its attributes", "if not is_whole(parameter):", "if False:"),
    ),
    *_of(
        "host/casting/bound.py",
        "host/test_casting.py",
        ("casting: a compiled model is cast and runs the original", "if COMPILED in", "if None in"),
        (
            "casting: a patch that is in place counts as the original's",
            "original -= {id(module) for path in replaced for module in _modules(places.get(path))}",
            "pass",
        ),
        (
            "casting: what is in the place of a patch is forgotten",
            "original |= {id(module) for value in replaced.values() for module in _modules(value)}",
            "pass",
        ),
    ),
    *_of(
        "host/offload/watermark.py",
        "emulator/test_dynamic_vram.py",
        (
            "dynamic VRAM: a budget keeps others from evicting, and bounds nothing",
            "memory.set_watermark(max(0, room) // PAGE_BYTES * PAGE_BYTES)",
            "memory.set_watermark_limit(weights)",
        ),
    ),
    *_of(
        "vae/exact/recording/probe.py",
        "unit/test_exact_vae.py",
        ("exact VAE: weights are read when their page is gone", "if recorder is not None:", "if False:"),
    ),
    *_of(
        "host/vae/room.py",
        "emulator/test_dynamic_vram_vae.py",
        ("dynamic VRAM: the exact VAE reads pages", "if self._own is not None or not own.bytes:", "if True:"),
    ),
    *_of(
        "host/vae/coding.py",
        "emulator/test_dynamic_vram_vae.py",
        ("dynamic VRAM: bands read pages", "staying() if are_here else", "staying() if not are_here else"),
    ),
    *_of(
        "host/bands/sent.py",
        "emulator/test_dynamic_vram_vae.py",
        (
            "dynamic VRAM: the host's pages go to other processes",
            "any(map(is_kept_by_host, own)):",
            "False:",
        ),
    ),
    *_of(
        "host/vae/strips.py",
        "emulator/test_dynamic_vram_vae.py",
        ("exact VAE: a run that ends early keeps its strips", "run.close()  # also", "pass  # also"),
    ),
    *_of(
        "host/offload/own_weights.py",
        "host/test_training.py",
        ("dynamic VRAM: a layer keeps its page", "del own[PAGE]", "pass"),
        ("dynamic VRAM: patches stay with the page", "if getattr(layer, patch, None) is not None:", "if False:"),
    ),
    *_of(
        "host/training/checkpointed.py",
        "host/test_training.py",
        ("training: the host's checkpoints stay within ours", "stack.enter_context(_plain(block))", "pass"),
        ("training: blocks keep our forward", "module.__dict__.pop(FORWARD, None)", "pass"),
        ("training: adapters go with the host's checkpoints", "places, name = adapter, ADAPTED", "break"),
    ),
    *_of(
        "host/training/budget.py",
        "host/test_training.py",
        (
            "training: a budget is for activations alone",
            "self._asked.budget - held.total",
            "self._asked.budget",
        ),
        (
            "training: what the first step was seen by stays",
            "yield RunningStep(plan, first.before, first.after, finish)",
            "first.running = RunningStep(plan, first.before, first.after, finish); yield first.running",
        ),
    ),
    *_of(
        "host/training/first_step.py",
        "host/test_training.py host/test_training_estimate.py",
        ("training: latents and texts are not predicted", "given=LATENTS * self.x.nbytes", "given=0 * self.x.nbytes"),
        (
            "training: another tensor in the place of one is that one",
            "found is not None and found() is not None",
            "found is not None",
        ),
    ),
    *_of(
        "host/training/first_step.py",
        "host/test_let_go.py",
        ("training: the graph's hooks keep the first step", "weakref.ref(self)", "(lambda step: lambda: step)(self)"),
    ),
    *_of(
        "host/training/costs.py",
        "host/test_training.py host/test_training_estimate.py",
        (
            "training: weights count as what a block saves",
            "tracker.leave_out([*there, *map(mode.from_tensor, real)])",
            "pass",
        ),
        (
            "training: what input blocks hand to output blocks is not there",
            "more = max(0, into - before.given)",
            "more = 0",
        ),
    ),
    *_of(
        "host/training/without_data.py",
        "host/test_training_estimate.py",
        (
            "training: an estimate leaves adapters out",
            "layer.weight_function = [*layer.weight_function,",
            "layer.weight_function = [*()]; [*layer.weight_function,",
        ),
        ("training: an estimate follows inference's operators", '"in_training", True)', '"in_training", False)'),
    ),
    *_of(
        "host/prediction/host_answers.py",
        "host/test_training_estimate.py",
        (
            "estimates: other threads see what one is told",
            'return value if getattr(here, "inside", False) else',
            "return value if here else",
        ),
    ),
    *_of(
        "host/training/attention.py",
        "host/test_training.py",
        (
            "training: attention by the free memory runs again otherwise",
            "if func.__name__ in BY_FREE_MEMORY:",
            "if False:",
        ),
    ),
    *_of(
        "host/training/costs.py",
        "host/test_training.py",
        (
            "training: runs without data count as the training's",
            "with answering({}), _disable_current_modes(), _no_casts_kept(), in_this_thread:",
            "with answering({}), _no_casts_kept(), in_this_thread:",
        ),
        (
            "training: a cast without data stays for the training",
            "torch.set_autocast_cache_enabled(False)",
            "pass",
        ),
    ),
    *_of(
        "host/training/costs.py",
        "emulator/test_training.py",
        (
            "training: a CPU that stands for a card keeps its own precision",
            "stack.enter_context(CudaAutocast())",
            "pass",
        ),
        ("training: a CPU that stands for a card keeps its own norms", "stack.enter_context(FusedRMSNorm())", "pass"),
        (
            "training: a card's backward without data is another thread's",
            "torch.autograd.set_multithreading_enabled(False)",
            "torch.autograd.set_multithreading_enabled(True)",
        ),
    ),
    *_of(
        "memory/prediction/autocast.py",
        "unit/test_autocast.py",
        ("mixed precision: all is in float32, asked for or not", 'if torch.is_autocast_enabled("cpu"):', "if True:"),
    ),
    *_of(
        "training/optimal.py",
        "unit/test_training_plans.py",
        (
            "plans: a checkpoint's own plan has what the others left",
            "self.cost[first, behind - 1] + (",
            "self.cost[first, behind - 1] * 0 + (",
        ),
        ("plans: sums are rounded down", "return -(-size // self.slot)", "return size // self.slot"),
        ("plans: tables begin at nothing", "more = max(0, -min(", "more = 0 * max(0, -min("),
    ),
    *_of(
        "video/pixels.py",
        VIDEO,
        ("video files: what lies behind a row is read with it", "BLOCK = 32", "BLOCK = 1"),
        ("video files: NaN is not made a number", "nan=0.0", "nan=1.0"),
    ),
    *_of(
        "video/join.py",
        VIDEO,
        ("video files: a segment's frames shown at the beginning", "before + round(", "round("),
        ("video files: the muxer waits for a sound that has ended", 'MOST_HELD = "500000"', 'MOST_HELD = "0"'),
    ),
    *_of(
        "video/journal.py",
        VIDEO,
        (
            "journal: the state to go on from deleted too early",
            "{stop, finished[-1].stop if finished else stop}",
            "{stop}",
        ),
        ("journal: another decode's segments taken for ours", "_read_plan(folder) != asdict(plan)", "False"),
    ),
    *_of(
        "video/writer.py",
        VIDEO,
        ("video files: a crf that is given is not used", "form.crf if crf is None else crf", "form.crf"),
    ),
    *_of(
        "video/reader.py",
        VIDEO,
        ("video files: a phone's video not turned", 'round(getattr(frame, "rotation", 0) / 90)', "round(0 / 90)"),
    ),
    *_of(
        "memory/json_file.py",
        "unit/test_json_file.py",
        ("json: numbers that are none are written", "allow_nan=False", "allow_nan=True"),
    ),
    *_of(
        "host/following/kinds.py",
        ESTIMATE,
        (
            "estimate: our nodes taken for neutral ones",
            ' and not kind.startswith("Headroom")',
            "",
        ),
    ),
    *_of(
        "memory/prediction/by_shape.py",
        "unit/test_by_shape.py",
        (
            "a sum of tensors in any order is taken to come out in theirs",
            " and x.shape == y.shape and x.is_contiguous() and y.is_contiguous())",
            " and x.shape == y.shape)",
        ),
        (
            "a tensor whose value is known loses it in a view",
            "type(value) is FakeTensor and value.constant is None",
            "type(value) is FakeTensor",
        ),
    ),
    *_of(
        "memory/prediction/deep_calls.py",
        "unit/test_deep_calls.py",
        (
            "deep calls get a piece of the stack as small as any other",
            "SLOTS = 2**15",
            "SLOTS = 2**5",
        ),
    ),
    *_of(
        "host/workflow/isolation.py",
        SERVER,
        (
            "an estimate takes the user's cancel for its own",
            '    yield comfy.model_management, "throw_exception_if_processing_interrupted", require_wanted\n',
            "",
        ),
        (
            "an estimate's choice of a kernel is forgotten once it was made",
            "        self.chosen = list(backends)\n        self.__enter__()\n",
            "        self.chosen = list(backends)\n",
        ),
    ),
    *_of(
        "host/core/cancel.py",
        "host/test_cancel.py",
        (
            "a prediction in a prompt asks nobody whether it is still wanted",
            "    with while_wanted(_not_cancelled):\n        yield\n",
            "    yield\n",
        ),
        (
            "what a module computes of all frames asks nobody",
            "        comfy.model_management.throw_exception_if_processing_interrupted()\n        return function",
            "        return function",
        ),
    ),
    *_of(
        "host/planning/report.py",
        "host/test_cancel.py",
        (
            "a report predicts for as long as it takes",
            "return time.thread_time() < self.end",
            "return True",
        ),
    ),
    *_of(
        "host/vae/strips.py",
        "host/test_cancel.py",
        (
            "the search of a plan is deaf to a cancel",
            "on_search=model_management.throw_exception_if_processing_interrupted, ",
            "",
        ),
    ),
    *_of(
        "host/prediction/networks.py",
        "host/test_beside_models.py",
        (
            "a network that two ControlNets share counts twice",
            "if id(value) not in self._copies:",
            "if True:",
        ),
        (
            "a ControlNet before another is not looked for",
            'control = getattr(control, "previous_controlnet", None)',
            "control = None",
        ),
    ),
    *_of(
        "host/planning/fit.py",
        "host/test_beside_models.py",
        (
            "the budget of a model is given that of its ControlNets too",
            "room, least = budget - plan.stage.beside,",
            "room, least = budget,",
        ),
        (
            "a model beside a ControlNet that does not fit is refused",
            "max(room, least) / GB",
            "room / GB",
        ),
    ),
    *_of(
        "host/prediction/networks.py",
        f"host/test_workflow_files.py {ESTIMATE}",
        (
            "a video decodes to as many frames as it has cells",
            "frames = int(in_time(latent.shape[2]) if callable(in_time) else latent.shape[2] * in_time)",
            "frames = int(latent.shape[2])",
        ),
    ),
)

SERVERS = (
    *_of(
        "host/server/admission.py",
        SERVER,
        (
            "admission: what is too big is queued",
            "if answer.forecast.verdict is not Verdict.DOES_NOT_FIT:",
            "if answer.forecast.verdict is not None:",
        ),
        (
            "admission: the limit that was sent ignored",
            "        terms = terms_of(extra[KEY])\n",
            "        terms_of(extra[KEY])\n        terms = Terms()\n",
        ),
        (
            "admission: refused on a guess",
            "if not answer.stages_followed or answer.guessed:",
            "if not answer.stages_followed and answer.guessed:",
        ),
    ),
    *_of(
        "host/server/routes.py",
        f"{SERVER} host/test_long_lived.py",
        (
            "routes: strips not followed when asked",
            "    if FOLLOW in request.query:",
            "    if FOLLOW in prompt:",
        ),
        ("routes: what is loaded is looked at again and again", "    set_aside()\n", ""),
    ),
)

# ----------------------------------------------------------------------------------------- the nodes and the commands

NODES = (
    *_of(
        "nodes/card.py",
        "host/test_contract.py host/test_languages.py",
        ("nodes: a default changed", '"limit", default=0.85,', '"limit", default=0.9,'),
    ),
    *_of(
        "nodes/attention.py",
        "host/test_contract.py host/test_languages.py",
        (
            "nodes: input order changed",
            "                blocks_input(),\n                *step_inputs(),\n",
            "                *step_inputs(),\n                blocks_input(),\n",
        ),
    ),
    *_of(
        "nodes/cast.py",
        "host/test_casting.py host/test_templates.py",
        ("nodes: sensitivity ignored", "        if not goal:", "        if settings:"),
    ),
    *_of(
        "nodes/estimate.py",
        "host/test_prediction.py host/test_over_http.py host/test_templates.py",
        (
            "nodes: Will It Fit? does not stop",
            'if if_too_big == "stop" and forecast.verdict is',
            "if not if_too_big and forecast.verdict is",
        ),
    ),
    *_of(
        "nodes/__init__.py",
        "host/test_internals.py host/test_import.py",
        (
            "nodes: one that is missing is not said",
            "[internal.sentence for internal in lacking]",
            "[]",
        ),
    ),
)

COMMANDS = (
    *_of(
        "cli/estimate.py",
        "host/test_estimate_cli.py",
        (
            "command estimate: status 0 for an incomplete answer",
            'return FITS if numbers["complete"] else CANNOT_ANSWER',
            "return FITS",
        ),
        (
            "command estimate: status 0 for what does not fit",
            'if numbers["verdict"] == "does_not_fit":',
            'if numbers["verdict"] == "streams":',
        ),
    ),
    *_of(
        "cli/fit.py",
        "unit/test_graph.py host/test_workflow_files.py",
        (
            "command fit: what stood around the workflow is lost",
            '{**content, "prompt": result} if formats.is_request(content) else result',
            "result",
        ),
    ),
    *_of(
        "cli/checks/rows.py",
        "host/test_check.py emulator/test_check.py",
        (
            "command check: a broken promise told as held",
            "CheckOutcome.HELD if condition else CheckOutcome.BROKEN",
            "CheckOutcome.HELD",
        ),
        (
            "command check: what failed counts as good",
            "(CheckOutcome.HELD, CheckOutcome.SEEN, CheckOutcome.NOT_HERE)",
            "(CheckOutcome.HELD, CheckOutcome.SEEN, CheckOutcome.NOT_HERE, CheckOutcome.FAILED)",
        ),
    ),
    *_of(
        "cli/checks/attention.py",
        "host/test_check.py emulator/test_check.py",
        (
            "command check: a fallback told as the backend",
            "if name in BACKENDS and not ran[name]:",
            "if name in BACKENDS and not ran:",
        ),
    ),
    *_of(
        "cli/checks/prediction.py",
        "host/test_check.py emulator/test_check.py",
        (
            "command check: any prediction holds",
            "return held((1 - share) * low - LITTLE <= measured <= (1 + share) * high + LITTLE), text",
            "return held(measured <= (2 + share) * high + LITTLE), text",
        ),
    ),
)

SPEED = "unit/test_speed.py host/test_time.py"
FOLLOWED = "host/test_followed_data.py"
FOLLOWED_DATA = (
    *_of(
        "memory/prediction/known_numbers.py",
        "unit/test_known_numbers.py",
        (
            "numbers: what is stated of a tensor is written over",
            "getattr(tensor, NUMBERS).clone()",
            "getattr(tensor, NUMBERS)",
        ),
        ("numbers: what was forgotten is stated again", "self._numbers[tensor] = None", "del self._numbers[tensor]"),
        ("numbers: none go to the next prediction", "setattr(one, NUMBERS, self._of(one))", "pass"),
    ),
    *_of(
        "host/following/stages/encoders.py",
        FOLLOWED,
        ("followed: a sound is heard at its own rate", "waveform.shape[-1] * HEARD_RATE // rate", "waveform.shape[-1]"),
    ),
    *_of(
        "host/following/plain.py",
        FOLLOWED,
        ("followed: what is painted has a size of its own", "if image is None else image.shape[1:3]", ""),
    ),
    *_of(
        "host/prediction/host_answers.py",
        FOLLOWED,
        ("followed: experts of shapes choose", '"comfy.ldm.hunyuan3dv2_1.hunyuandit:MoEGate": 0,', ""),
    ),
    *_of(
        "host/workflow/estimate.py",
        "host/test_estimate_cli.py",
        ("estimate: files that are missing are told last", "one not in run.missing", "one in run.missing"),
    ),
    *_of(
        "cli/host.py",
        FOLLOWED,
        (
            "estimate: none of the host's files has a node",
            ".isdisjoint(kinds)",
            ".isdisjoint(set())",
        ),
    ),
)

TIMES = (
    *_of(
        "memory/speed/kernels.py",
        SPEED,
        ("time: a table is read whole", "return min(given, written) if packet in", "return given if packet in"),
        ("time: an expanded value is read as often as it is seen", "size if stride or size == 0 else 1", "size"),
    ),
    *_of(
        "memory/speed/speed.py",
        SPEED,
        (
            "time: a card's bytes come after its operations",
            "return max(self.kernel, operations, moved)",
            "return self.kernel + operations + moved",
        ),
        ("time: a card starts kernels in no time", "max(kernels, launches) if self.ahead", "kernels if self.ahead"),
    ),
    *_of(
        "memory/speed/history.py",
        SPEED,
        ("time: all runs count alike", "1 / (near + math.log(seconds / run.predicted) ** 2)", "1.0"),
        ("time: a run that was far off teaches all others", "run.within(FAR) for", "run for"),
    ),
    *_of(
        "host/following/steps.py",
        SPEED,
        ("time: samplers that call twice in a step call once", "steps * each - (each - 1)", "steps"),
        ("time: a part of the steps counts as all", "last) - first))", "last)))"),
    ),
    *_of(
        "host/following/findings.py",
        SPEED,
        ("time: of two samplings of a model one counts", "(stage.times + other.times) * known", "stage.times * known"),
    ),
    *_of(
        "host/prediction/host_answers.py",
        SPEED,
        ("time: one tile counts for all", "repeated(samples.shape[0] * _tiles(", "repeated(1 or _tiles("),
    ),
    *_of(
        "host/planning/pilot.py",
        "host/test_pilot.py emulator/test_pilot.py",
        ("pilot: what deviates stays", "if pilot is not None and pilot.holds:", "if pilot is not None:"),
        (
            "pilot: a step has as much room as it was predicted to take",
            "int(ROOM * stage.activations)",
            "stage.activations",
        ),
    ),
)

BAND_TESTS = "unit/test_bands.py host/test_bands.py host/test_video_over_workers.py host/test_workers.py"
BANDS = (
    *_of(
        "vae/exact/running/stream.py",
        BAND_TESTS,
        (
            "bands: rows of another worker's count too",
            "low, high = max(low, first), min(high, end)",
            "low, high = first, end",
        ),
    ),
    *_of(
        "vae/exact/bands/passes.py",
        BAND_TESTS,
        (
            "bands: statistics of the own band alone",
            "counts, parts, torch.empty(",
            "counts[:1], parts[:1], torch.empty(",
        ),
        ("bands: what is given is written to later", "[rows.clone(memory_format=torch.contiguous_format)]", "[rows]"),
    ),
    *_of(
        "vae/exact/bands/attend.py",
        BAND_TESTS,
        (
            "bands: attention forgets the largest score",
            "shrink = (most[..., tile] - high).exp_()",
            "shrink = high * 0 + 1",
        ),
        ("bands: a visiting band takes no memory", "+ moved + tile", "+ tile"),
    ),
    *_of(
        "vae/exact/bands/run.py",
        BAND_TESTS,
        ("bands: the first worker's budget is all workers'", "over = max(peak", "over = 1 if fits else max(peak"),
        ("bands: random numbers of each worker's own", "return drawn.clone()", "return drawn.clone().normal_()"),
    ),
    *_of(
        "vae/exact/cutting/exchange.py",
        BAND_TESTS,
        (
            "bands: keys and values from others are not counted",
            "whole = sum(node.bytes - ",
            "whole = 0 * sum(node.bytes - ",
        ),
    ),
    *_of(
        "vae/exact/bands/threads.py",
        BAND_TESTS,
        ("bands: a worker that fails is waited for", "            table.fail(rank)\n", "            pass\n"),
    ),
    *_of(
        "host/bands/named.py",
        BAND_TESTS,
        ("workers: an address passes for a name", "if name not in known:", 'if name not in known and ":" not in name:'),
        ("workers: a mistyped entry is ignored", "if key not in kinds or isinstance", "if isinstance"),
    ),
    *_of(
        "host/bands/cluster.py",
        BAND_TESTS,
        ("workers: another version takes part", "if about[what] != own:", "if about[what] == 0:"),
        (
            "workers: one that died is asked again",
            "one for one in self.workers if one not in dead",
            "one for one in self.workers",
        ),
    ),
    *_of(
        "host/bands/joining.py",
        BAND_TESTS,
        ("workers: a cluster without a token is joined", '"RAY_AUTH_MODE": "token"', '"RAY_AUTH_MODE": "disabled"'),
    ),
    *_of(
        "vae/exact/bands/chunked.py",
        BAND_TESTS,
        (
            "bands: what a chunk keeps in RAM lies as in the whole map",
            "store.append(first - begin, slab, own)",
            "store.append(first, slab, own)",
        ),
        (
            "bands: what is computed of all frames passes for a whole map",
            "self.heights[id(out)] = node.rows.count * node.rows.unit",
            "self.heights[id(out)] = own[node.rows.dim]",
        ),
    ),
    *_of(
        "vae/exact/chunked.py",
        "emulator/test_bands.py",
        (
            "chunks: a result in host memory counts on the card",
            "if self.so_far.device.type == self.bring(x[:, :, :1]).device.type:",
            "if self.so_far is not None:",
        ),
    ),
    *_of(
        "vae/exact/bands/talk.py",
        BAND_TESTS,
        (
            "workers: the state behind a chunk is the first one's band",
            "torch.cat(found, -2) if name in in_bands else found[0]",
            "found[0]",
        ),
        (
            "workers: another way goes on in the middle of the file",
            "coming = coming if at else brings()",
            "coming = coming if bands is None else brings()",
        ),
    ),
    *_of(
        "host/bands/work.py",
        BAND_TESTS,
        (
            "workers: one way takes what another was given",
            "run.steps = count(number << STEPS)",
            "run.steps = count(number >> STEPS)",
        ),
        ("workers: a video begins anew instead of going on", "begin(frames, work.done, state, put)", "begin(frames)"),
    ),
    *_of(
        "host/streaming/bands.py",
        BAND_TESTS,
        (
            "workers: one that dies costs the whole video",
            "self.begins = (onward.at, state)",
            "self.begins = self.begins",
        ),
    ),
    *_of(
        "host/video_files/from_file.py",
        "host/test_video_files.py",
        (
            "video encode: what sees all frames asks the file for another one",
            "run.fetch = lambda part, start, stop: next(coming)",
            "run.bring = lambda part: next(coming)",
        ),
    ),
    *_of(
        "host/bands/devices.py",
        BAND_TESTS,
        ("workers: of its own devices one that ran out of memory ends all", "if not short or not left:", "if True:"),
        ("workers: a device without a number counts twice", "other.index != (device.index or 0)", "other != device"),
    ),
    *_of(
        "host/bands/gathered.py",
        BAND_TESTS,
        ("workers: bands lie over each other", "first += band.shape[dim]", "first += 0"),
    ),
    *_of(
        "host/bands/crew.py",
        BAND_TESTS,
        ("workers: all get as much", "[max(1.0, budget) for budget in budgets]", "[1.0 for budget in budgets]"),
    ),
    *_of(
        "host/bands/sent.py",
        BAND_TESTS,
        (
            "workers: the pack's own attention goes along",
            "if isinstance(thing, AttentionInStrips):",
            "if thing is None:",
        ),
    ),
)

MUTATIONS = (
    *ATTENTION, *VAE, *OFFLOAD, *MEMORY, *GRAPHS, *CORE, *MEASURE, *SAMPLING, *OVERRIDES, *CASTS, *BUDGETS, *VAES,
    *PREDICTIONS, *PLANNING, *WORKFLOWS, *SERVERS, *NODES, *COMMANDS, *TIMES, *FOLLOWED_DATA,
    *BANDS,
)  # fmt: skip
