"""Run the service until it is told to stop."""

from __future__ import annotations

import uvicorn

from ncclt_api.app import create_app, open_service_store


def serve(
    storage: str,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    dashboard: bool = True,
    log_level: str = "info",
) -> None:
    """Serve recommendations, studies and pages; returns after SIGINT or SIGTERM.

    The store is opened before the port, so that a store that cannot be reached is the caller's one clear error.

    Args:
        storage: the store's URL.
        host: address to listen on; anything but loopback shows the studies to the network, there is no login.
        port: TCP port.
        dashboard: whether optuna-dashboard is served at /dashboard.
        log_level: uvicorn's word: critical, error, warning, info, debug.

    Raises:
        StoreError: the store cannot be reached.
        UsageError: the URL is none.
    """
    with open_service_store(storage) as store:
        app = create_app(store, dashboard=dashboard)
        uvicorn.run(app, host=host, port=port, log_level=log_level, server_header=False)
