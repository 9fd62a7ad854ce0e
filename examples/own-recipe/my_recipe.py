"""What this project adds to its host: a folder of data, and a link to the current data set."""

from __future__ import annotations

from dataclasses import dataclass

from provision import Directory, Facts, File, RemotePath, Resource, Script, Settings, State, script


@dataclass(frozen=True, kw_only=True)
class Link(Resource):
    """A symbolic link."""

    path: str
    target: str

    def probe(self) -> Script:
        return script('test ! -L "$path" || readlink "$path"', path=RemotePath(self.path))

    def read(self, text: str) -> State | None:
        return {"target": text.rstrip("\n")} if text else None

    def desired(self, facts: Facts) -> State:
        return {"target": self.target}

    def ensure(self, facts: Facts) -> Script:
        return script('ln -sfn "$target" "$path"', path=RemotePath(self.path), target=self.target)


def extra(settings: Settings) -> list[Resource]:
    """Folder, labels and link, after the built-in recipe.

    /mnt/disks is in memory, so the link is made again at every boot.
    """
    folder = "/var/lib/data/" + settings.worker.env.get("DATA_SET", "none")
    return [
        Directory(name="data-folder", path=folder, mode="0755"),
        File(
            name="labels", path=f"{folder}/labels.txt", content="cat\ndog\n", needs=("data-folder",)
        ),
        Link(name="data-link", path="/mnt/disks/data", target=f"../..{folder}", at_boot=True),
    ]
