class _Retry:
    def with_timeout(self, timeout: float | None) -> _Retry: ...

DEFAULT_RETRY: _Retry
