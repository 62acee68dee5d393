"""Serve the shop: `python -m examples.fastapi_app [file]`, then see http://localhost:8000/docs and /asyncapi."""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn

from examples.fastapi_app.app import create_app

if __name__ == "__main__":
    uvicorn.run(create_app(Path(sys.argv[1] if len(sys.argv) > 1 else "shop.db")))
