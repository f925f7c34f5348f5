"""Keep track of the stock of a small shop."""

from dataclasses import dataclass


class OutOfStock(Exception):
    """There are not enough units of a product."""


@dataclass
class Product:
    """An article with its price in cents."""

    sku: str
    name: str
    price: int
    quantity: int = 0
    reserved: int = 0

    @property
    def available(self):
        return self.quantity - self.reserved


class Inventory:
    """All products of the shop by their stock keeping unit."""

    def __init__(self):
        self._products = {}

    def add_product(self, sku, name, price, quantity=0):
        """Register a new product and return it."""
        if sku in self._products:
            raise ValueError(f"product {sku!r} already exists")
        product = Product(sku, name, price, quantity)
        self._products[sku] = product
        return product

    def restock(self, sku, amount):
        """Add units of a product to the stock and return the new quantity."""
        if amount <= 0:
            raise ValueError("amount must be positive")
        product = self._products[sku]
        product.quantity += amount
        return product.quantity

    def reserve(self, order):
        """Reserve the products of an order, which maps stock keeping units to
        amounts. Either all of them are reserved or none.
        """
        for sku, amount in order.items():
            product = self._products[sku]
            if product.available < amount:
                raise OutOfStock(f"only {product.available} units of {product.name} left")
        for sku, amount in order.items():
            self._products[sku].reserved += amount

    def ship(self, order):
        """Remove reserved products from the stock and return their total price."""
        total = 0
        for sku, amount in order.items():
            product = self._products[sku]
            product.reserved -= amount
            product.quantity -= amount
            total += product.price * amount
        return total

    def low_stock(self, threshold=5):
        """Return the products with few available units, the scarcest first."""
        scarce = []
        for product in self._products.values():
            if product.available <= threshold:
                scarce.append(product)
        return sorted(scarce, key=lambda product: product.available)
