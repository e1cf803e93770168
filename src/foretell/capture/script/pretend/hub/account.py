"""What scripts do with an account on the Hugging Face hub: log in, make a repository, upload. None of it happens."""

from __future__ import annotations

from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

_USER: Final = "user"
_WRITES: Final = """upload_file upload_folder upload_large_folder create_commit create_branch create_tag delete_repo delete_file
    delete_folder add_space_secret update_repo_settings super_squash_history preupload_lfs_files add_collection_item""".split()
_FORMER: Final = ("Repository", "HfFolder")  # of older versions


def install(session: Session) -> None:
    once_imported("huggingface_hub.hf_api", _api)
    once_imported("huggingface_hub._login", lambda module: vars(module).update(dict.fromkeys(_LOGINS, _nothing)))
    once_imported(
        "huggingface_hub", lambda module: vars(module).update({n: Nothing(n) for n in _FORMER if not _has(module, n)})
    )


_LOGINS: Final = ("login", "notebook_login", "interpreter_login", "logout")


def _has(module: Any, name: str) -> bool:
    return name in getattr(module, "__all__", ()) or name in vars(module)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _api(module: Any) -> None:
    """As methods, and as the functions that the module has made of them."""

    def create_repo(repo_id: str, *args: Any, **kwargs: Any) -> Any:
        return module.RepoUrl(f"https://huggingface.co/{repo_id if '/' in repo_id else f'{_USER}/{repo_id}'}")

    def full_name(model_id: str, *, organization: str | None = None, **kwargs: Any) -> str:
        return f"{organization or _USER}/{model_id}"

    answers: dict[str, Any] = {
        "create_repo": create_repo, "get_full_repo_name": full_name, "repo_exists": lambda *args, **kwargs: False,
        "whoami": lambda *args, **kwargs: {"name": _USER, "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}},
        **{name: lambda *args, **kwargs: Nothing("huggingface_hub.commit") for name in _WRITES},
    }  # fmt: skip
    for name, answer in answers.items():
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, lambda self, *args, answer=answer, **kwargs: answer(*args, **kwargs))
            setattr(module, name, answer)
