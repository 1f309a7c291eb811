"""nbgrader's exchange, where students are strangers to each other: who handed in what is said by the file system.

nbgrader itself collects a folder under the name that it bears, follows the links in it with the instructor's rights, and
stops at the first that it cannot read. Any student may make a folder of any name in the exchange.
"""

import datetime
import os
import pwd
import shutil
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback

from tools.grading import files
from tools.grading.submission import handed_in

#: What `nbgrader submit` puts beside the notebook, and `nbgrader fetch_feedback` finds a page by.
RECEIPT = ("timestamp.txt", "submission_secret.txt")
MINUTES = 10  # between the hour in a submission and the copy of its last file
NEVER = datetime.datetime(1970, 1, 1)


def carry_receipt(submitted: Path, folder: Path) -> None:
    """Put the receipt of a submission beside its feedback page; of one that came another way there is none."""
    for name in RECEIPT:
        place = submitted / name
        plain = place.is_file() and not place.is_symlink() and place.stat().st_size <= 200
        if plain and (text := place.read_bytes()).isascii():
            files.write(folder / name, text)
        else:
            (folder / name).unlink(missing_ok=True)


def changed_at(folder: Path) -> datetime.datetime:
    """When Linux last saw a change of a submission's files, which their author cannot set."""
    newest = max((one.stat(follow_symlinks=False).st_ctime for one in os.scandir(folder)), default=folder.stat().st_ctime)
    return datetime.datetime.fromtimestamp(newest, datetime.UTC)


def dated_back(folder: Path) -> str:
    """What is odd about the hour that a submission gives for itself: its author may write any, but not what Linux notes."""
    if (says := handed_in(folder)) is None:
        return ""
    changed = changed_at(folder)
    late = changed - says > datetime.timedelta(minutes=MINUTES)
    return f"says that it was handed in at {says:%d %B %H:%M} UTC, and was last changed at {changed:%d %B %H:%M}" * late


class Collect(ExchangeCollect):
    """`nbgrader collect`: each folder belongs to the user who owns it, links stay links, and one bad folder stops nobody."""

    def init_src(self):
        """Find the newest submission of each student; what is no folder is none."""
        super().init_src()
        for record in self.src_records:
            if not self._is_folder(record):
                self.log.warning("%s is no folder and is not collected", record["filename"])
        self.src_records = [record for record in self.src_records if self._is_folder(record)]

    def _is_folder(self, record):
        place = Path(self.inbound_path, record["filename"])
        return place.is_dir() and not place.is_symlink()

    def _sort_by_timestamp(self, records):
        return sorted(super()._sort_by_timestamp(records), key=self._is_folder, reverse=True)

    def _path_to_record(self, path):
        name = os.path.basename(path)
        try:
            record = super()._path_to_record(path)
        except (SystemExit, ValueError, OverflowError):
            self.log.warning("%s: no time in the name of this folder", name)
            record = {"username": name.partition("+")[0], "filename": name, "timestamp": NEVER}
        if self.check_owner:
            number = os.lstat(path).st_uid
            try:
                owner = pwd.getpwuid(number).pw_name
            except KeyError:
                owner = f"user-{number}"
            if owner != record["username"]:
                self.log.warning("%s was made by %s, and counts as a submission of %s", name, owner, owner)
                record["username"] = owner
        return record

    def do_copy(self, src, dest, log=None):
        """Copy a submission. A link is copied as a link, for the grader to refuse; what cannot be read is named.

        Where it gives no hour, or one that the file system denies, the copy's hour is that of the last change.
        """
        stamp = None
        try:
            backdated = dated_back(Path(src))
            if backdated or handed_in(Path(src)) is None:
                stamp = changed_at(Path(src))
                said = backdated or "bears no hour that can be read"
                self.log.warning("%s %s: the last change, %s, counts", os.path.basename(src), said, stamp)
            if (size := self.get_size(src)) > 1000 * self.coursedir.max_dir_size:
                raise OSError(f"{size} bytes are more than max_dir_size, {1000 * self.coursedir.max_dir_size}")
            shutil.copytree(src, dest, symlinks=True, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        except (OSError, shutil.Error) as error:
            self.log.warning("%s is not collected whole: %s", os.path.basename(src), error)
        if os.path.isdir(dest):
            os.chmod(dest, 0o700)  # in the exchange everybody may write into it, or nobody but its author
            if stamp:
                files.write(Path(dest, "timestamp.txt"), f"{stamp:%Y-%m-%d %H:%M:%S} UTC")


class ReleaseFeedback(ExchangeReleaseFeedback):
    """`nbgrader release_feedback`: leaves out pages of those who handed nothing in through the exchange."""

    def copy_files(self):
        """Release the pages that somebody can fetch."""
        pages = self.coursedir.format_path(self.coursedir.feedback_directory, "*", self.coursedir.assignment_id)
        folders = Path(self.coursedir.root).glob(os.path.relpath(pages, self.coursedir.root))
        without = {folder.parent.name for folder in folders if not all((folder / name).is_file() for name in RECEIPT)}
        for student in sorted(without):
            self.log.info("%s handed nothing in through the exchange: the page stays in feedback/", student)
        excluded = {name for name in self.coursedir.student_id_exclude.split(",") if name}
        self.coursedir.student_id_exclude = ",".join(sorted(excluded | without))
        super().copy_files()
