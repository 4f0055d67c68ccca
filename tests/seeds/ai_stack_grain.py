"""The tutorial's part on Grain: its DataLoader is sharded by process, so each process has other rows."""

import grain.python as pygrain
import jax
import numpy as np
import small_mnist
from ai_stack import batch_size, mesh, num_epochs, one_hot, params, train_with_loader
from blocks import block, run_all
from everywhere import by_process, message_of, rows_here, whole

import hostmesh


class Dataset:
    def __init__(self, train=True):
        self.train = train
        self.load_data()

    def load_data(self):
        self.images, self.labels = small_mnist.load(self.train)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        img, label = self.images[index], self.labels[index]
        return np.ravel(np.array(img, dtype=np.float32)), label


mnist_dataset = Dataset()
# One epoch, where the tutorial leaves num_epochs out and so has no end.
sampler = pygrain.SequentialSampler(num_records=len(mnist_dataset), shard_options=pygrain.ShardByJaxProcess())


def pygrain_training_generator():
    return pygrain.DataLoader(
        data_source=mnist_dataset, sampler=sampler, operations=[pygrain.Batch(batch_size)], worker_count=0
    )


@block
def the_dataset_has_flat_images():
    image, label = mnist_dataset[0]
    assert len(mnist_dataset) == 512 and image.shape == (784,) and image.dtype == np.float32 and 0 <= label < 10


@block
def the_full_sets_are_arrays():
    images = np.array([mnist_dataset[i][0] for i in range(len(mnist_dataset))], np.float32)
    labels = one_hot(np.array([mnist_dataset[i][1] for i in range(len(mnist_dataset))]), 10)
    assert images.shape == (512, 784) and labels.shape == (512, 10)


@block
def its_processes_read_different_records():
    _, labels = next(iter(pygrain_training_generator()))
    first, second = by_process(labels.tolist())
    everything = small_mnist.load()[1].tolist()
    assert first == everything[:256:2] and second == everything[1:256:2]


@block
def without_sharded_the_cause_is_named():
    wanted = "as its ShardByJaxProcess says, wanted all records: give the loader sharded=True, or pass shard_options="
    assert wanted in message_of(lambda: hostmesh.Loader(pygrain_training_generator, mesh, batch_size))


@block
def the_training_loop_uses_each_record_once():
    options = {"batch_size": 2 * batch_size, "epochs": 1, "sharded": True}
    loader = hostmesh.Loader(pygrain_training_generator, mesh, **options)
    labels = [whole(y) for _, y in loader]
    everything = small_mnist.load()[1]
    assert len(labels) == 2
    assert labels[0].tolist() == [*everything[:256:2], *everything[1:256:2]]
    assert sorted(np.concatenate(labels).tolist()) == sorted(everything.tolist())
    found = train_with_loader(
        params, hostmesh.Loader(pygrain_training_generator, mesh, **{**options, "epochs": num_epochs})
    )
    assert np.isfinite(found[0][0]).all()


@block
def a_process_fills_the_rows_of_its_own_devices():
    for _, labels in hostmesh.Loader(pygrain_training_generator, mesh, 2 * batch_size, steps=1, sharded=True):
        assert rows_here(labels).tolist() == small_mnist.load()[1][jax.process_index() : 256 : 2].tolist()


@block
def it_goes_on_from_its_state():
    loader = hostmesh.Loader(pygrain_training_generator, mesh, 64, epochs=1, sharded=True)
    batches = [whole(y).tolist() for _, y in loader]
    loader.restore(0)
    for _ in range(6):  # past the end of a batch of Grain's, where it has a state
        next(loader)
    state = loader.state()
    assert state["sharded"] == 2 and len(state["shards"]) == 1
    again = hostmesh.Loader(pygrain_training_generator, mesh, 64, epochs=1, sharded=True)
    again.restore(state)
    assert [whole(y).tolist() for _, y in again] == batches[6:]


@block
def a_state_of_other_shards_is_refused():
    loader = hostmesh.Loader(pygrain_training_generator, mesh, 64, epochs=1, sharded=True)
    for state, found in (
        ({"step": 1, "shards": {}, "sharded": 4}, "of 4 shards; wanted one of 2"),
        ({"step": 1, "shards": {}}, "of a loader without sharded=True; wanted one of 2"),
    ):
        assert found in message_of(lambda state=state: loader.restore(state))


run_all()
