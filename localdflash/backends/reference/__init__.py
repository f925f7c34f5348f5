"""The readable reference in torch: what every other backend computes, as plain modules in float32."""
