"""Mini-batches prepared on VMs of their own, by TensorFlow's tf.data service: its dispatcher, and
its workers.

The dispatcher runs beside the chief and keeps a journal, from which it goes on when it was killed.
It hands the files of records to preparation VMs; each runs the pipeline that a worker of the run
has registered, and workers take what is ready. None of them needs the run's code.

For trials of a study that share a VM, dispatcher and server are one process there, which keeps the
last mini-batches for those who have not had them yet (tf.data service's cross-trainer cache).
"""
