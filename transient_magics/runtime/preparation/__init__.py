"""Mini-batches prepared on other VMs, by TensorFlow's tf.data service: its dispatcher and workers.

The dispatcher runs beside the chief, and keeps a journal from which it continues after a restart.
It gives the files of records to preparation VMs. Each runs the pipeline that a worker of the run
has registered, and workers take what is ready. None of these processes needs the run's code.

For trials of a study that share a VM, dispatcher and server are one process on that VM. It keeps
the last mini-batches for trials that have not had them yet (tf.data service's cross-trainer cache).
"""
