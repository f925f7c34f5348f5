"""A thin client for JSON services."""

import json
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import Request, urlopen


class ApiError(Exception):
    """The service answered with an error status."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class ApiClient:
    """Send requests to one service, with common headers."""

    def __init__(self, base_url, token=None, timeout=10.0):
        """Remember where the service is and how to authenticate."""
        self.base_url = base_url.rstrip("/") + "/"
        self.timeout = timeout
        self.headers = {"Accept": "application/json"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def build_request(self, method, path, params=None, data=None):
        """Create a request; parameters that are None are left out of the query."""
        url = urljoin(self.base_url, path.lstrip("/"))
        query = {key: value for key, value in (params or {}).items() if value is not None}
        if query:
            url += "?" + urlencode(query, doseq=True)
        headers = dict(self.headers)
        body = None
        if data is not None:
            body = json.dumps(data).encode("utf-8")
            headers["Content-Type"] = "application/json"
        return Request(url, data=body, headers=headers, method=method)

    def request(self, method, path, params=None, data=None):
        """Send a request and return the decoded answer, or None if it is empty."""
        request = self.build_request(method, path, params, data)
        try:
            with urlopen(request, timeout=self.timeout) as response:
                content = response.read()
        except HTTPError as error:
            message = error.read().decode("utf-8", "replace")
            raise ApiError(error.code, message) from error
        if not content:
            return None
        return json.loads(content)

    def paginate(self, path, page_size=50, **params):
        """Yield the items of all pages of a list, one after the other."""
        page = 1
        while True:
            query = dict(params, page=page, per_page=page_size)
            answer = self.request("GET", path, query)
            items = answer["items"]
            yield from items
            if len(items) < page_size:
                return
            page += 1
