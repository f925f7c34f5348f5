"""Small dense matrices as tuples of rows."""


class Matrix:
    """An immutable matrix of numbers."""

    def __init__(self, rows):
        """Copy ``rows``, which must all have the same length."""
        self.rows = tuple(tuple(row) for row in rows)
        widths = {len(row) for row in self.rows}
        if len(widths) > 1:
            raise ValueError("rows have different lengths")
        self.height = len(self.rows)
        self.width = widths.pop() if widths else 0

    @classmethod
    def identity(cls, size):
        """Return the identity matrix with ``size`` rows and columns."""
        rows = []
        for i in range(size):
            row = [1 if i == j else 0 for j in range(size)]
            rows.append(row)
        return cls(rows)

    def transpose(self):
        """Return a matrix whose rows are the columns of this one."""
        return Matrix(zip(*self.rows))

    def __add__(self, other):
        """Add two matrices element by element."""
        if (self.height, self.width) != (other.height, other.width):
            raise ValueError("matrices have different shapes")
        pairs = zip(self.rows, other.rows)
        return Matrix([x + y for x, y in zip(left, right)] for left, right in pairs)

    def __matmul__(self, other):
        """Multiply this matrix by another one. The width of the first must be the
        height of the second.
        """
        if self.width != other.height:
            raise ValueError(f"cannot multiply {self.width} columns by {other.height} rows")
        columns = list(zip(*other.rows))
        result = []
        for row in self.rows:
            result.append([sum(x * y for x, y in zip(row, column)) for column in columns])
        return Matrix(result)

    def determinant(self):
        """Return the determinant of a square matrix by expansion along the first
        row.
        """
        if self.height != self.width:
            raise ValueError("the matrix is not square")
        if self.height == 0:
            return 1
        total = 0
        for column, value in enumerate(self.rows[0]):
            minor = [row[:column] + row[column + 1:] for row in self.rows[1:]]
            sign = -1 if column % 2 else 1
            total += sign * value * Matrix(minor).determinant()
        return total
