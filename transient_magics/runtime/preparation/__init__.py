"""Mini-batches prepared on VMs of their own, by TensorFlow's tf.data service: its dispatcher, and its workers.

The dispatcher runs beside the chief and keeps a journal, from which it goes on when it was killed. It hands the files
of records to preparation VMs; each runs the pipeline that a worker of the run has registered, and workers take what is
ready. None of them needs the run's code.
"""
