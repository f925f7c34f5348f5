"""Store a list of tasks in an SQLite database."""

import sqlite3
from datetime import date

SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    due TEXT,
    done INTEGER NOT NULL DEFAULT 0
)
"""


class TaskNotFound(KeyError):
    """There is no task with the given number."""


class TaskStore:
    """Create, find and finish tasks."""

    def __init__(self, path=":memory:"):
        """Open the database and create its table on the first use."""
        self._connection = sqlite3.connect(path)
        self._connection.row_factory = sqlite3.Row
        with self._connection:
            self._connection.execute(SCHEMA)

    def add(self, title, due=None):
        """Insert a task and return its number. The title must not be blank."""
        title = title.strip()
        if not title:
            raise ValueError("a task needs a title")
        due_text = due.isoformat() if due else None
        query = "INSERT INTO tasks (title, due) VALUES (?, ?)"
        with self._connection:
            cursor = self._connection.execute(query, (title, due_text))
        return cursor.lastrowid

    def finish(self, task_id):
        """Mark a task as done."""
        with self._connection:
            cursor = self._connection.execute("UPDATE tasks SET done = 1 WHERE id = ?", (task_id,))
        if cursor.rowcount == 0:
            raise TaskNotFound(task_id)

    def search(self, text="", include_done=False):
        """Return the tasks whose title contains ``text`` as a list of dictionaries,
        those that are due first at the top.
        """
        query = "SELECT * FROM tasks WHERE title LIKE ?"
        if not include_done:
            query += " AND done = 0"
        query += " ORDER BY due IS NULL, due, id"
        rows = self._connection.execute(query, (f"%{text}%",))
        return [dict(row) for row in rows]

    def overdue(self, today=None):
        """Return the titles of unfinished tasks whose due date has passed."""
        today = today or date.today()
        titles = []
        for task in self.search():
            if task["due"] and date.fromisoformat(task["due"]) < today:
                titles.append(task["title"])
        return titles

    def close(self):
        self._connection.close()
