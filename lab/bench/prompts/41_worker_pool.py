"""Run jobs in background threads."""

import queue
import threading

_STOP = object()


class Job:
    """A call that will be made later and its result."""

    def __init__(self, function, args, kwargs):
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._finished = threading.Event()
        self._result = None
        self._error = None

    def run(self):
        """Make the call and keep its result or its exception."""
        try:
            self._result = self.function(*self.args, **self.kwargs)
        except Exception as error:
            self._error = error
        finally:
            self._finished.set()

    def result(self, timeout=None):
        """Wait for the job to finish and return its result. An exception of the job
        is raised here.
        """
        if not self._finished.wait(timeout):
            raise TimeoutError("the job is not finished")
        if self._error is not None:
            raise self._error
        return self._result


class WorkerPool:
    """A fixed number of threads that take jobs from a queue."""

    def __init__(self, size=4, max_pending=100):
        """Start the worker threads."""
        self._queue = queue.Queue(max_pending)
        self._threads = []
        for number in range(size):
            thread = threading.Thread(target=self._work, name=f"worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self):
        """Run jobs until the stop mark comes out of the queue."""
        while True:
            job = self._queue.get()
            if job is _STOP:
                break
            job.run()
            self._queue.task_done()

    def submit(self, function, *args, **kwargs):
        """Put a call into the queue and return its job."""
        if not self._threads:
            raise RuntimeError("the pool is closed")
        job = Job(function, args, kwargs)
        self._queue.put(job)
        return job

    def close(self):
        """Finish all waiting jobs and stop the threads."""
        for _ in self._threads:
            self._queue.put(_STOP)
        for thread in self._threads:
            thread.join()
        self._threads = []
