"""A global sum over every device of every process, in plain JAX: `launch --local 4 --devices 2 examples/hello.py`."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
mesh = Mesh(jax.devices(), "x")
numbers = jax.make_array_from_callback(
    (jax.device_count(),), NamedSharding(mesh, PartitionSpec("x")), lambda index: jnp.arange(jax.device_count())[index]
)
total = jax.jit(jnp.sum)(numbers)
print(f"process {jax.process_index()} of {jax.process_count()}: the sum over {jax.device_count()} devices is {total}")
