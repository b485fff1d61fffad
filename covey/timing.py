"""How long things took: counts for ever, the newest few thousand spans for percentiles."""

from __future__ import annotations

import numpy as np


class Timing:
    """Spans of one step, on a clock that never jumps."""

    KEPT = 2048

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._began: list[float] = []
        self._ended: list[float] = []

    def add(self, began: float, ended: float) -> None:
        """One more span."""
        if len(self._began) < self.KEPT:
            self._began.append(began)
            self._ended.append(ended)
        else:
            slot = self.count % self.KEPT
            self._began[slot], self._ended[slot] = began, ended
        self.count += 1
        self.total += ended - began

    def summary(self) -> dict[str, float]:
        """Count, total and mean of all, percentiles of the newest."""
        if not self.count:
            return {"count": 0, "total": 0.0, "mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0}
        spans = np.subtract(self._ended, self._began)
        p50, p95, p99 = (float(p) for p in np.percentile(spans, [50, 95, 99]))
        mean = self.total / self.count
        counts = {"count": self.count, "total": self.total, "mean": mean}
        return {**counts, "p50": p50, "p95": p95, "p99": p99}

    def spans(self) -> list[tuple[float, float]]:
        """The newest spans, in no particular order."""
        return list(zip(self._began, self._ended, strict=True))
