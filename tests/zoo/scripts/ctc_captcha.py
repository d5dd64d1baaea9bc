"""Recognition of characters with a CTC loss in a layer, on a dataset of dicts."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

rng = np.random.default_rng(40)
characters = ["a", "b", "c", "d"]
texts = ["".join(rng.choice(characters, 3)) for _ in range(400)]
char_to_num = layers.StringLookup(vocabulary=characters, mask_token=None)
images = np.array([np.repeat(np.eye(4)[[characters.index(c) for c in text]], 4, 0) for text in texts], "float32")
images = images + 0.1 * rng.normal(size=images.shape).astype("float32")


def encode_single_sample(image, label):
    label = char_to_num(tf.strings.unicode_split(label, input_encoding="UTF-8"))
    return {"image": image, "label": tf.ensure_shape(label, [3])}


train_dataset = tf.data.Dataset.from_tensor_slices((images, texts))
train_dataset = train_dataset.map(encode_single_sample).batch(16).prefetch(buffer_size=tf.data.AUTOTUNE)


class CTCLayer(layers.Layer):
    def call(self, y_true, y_pred):
        batch_len = ops.cast(ops.shape(y_true)[0], dtype="int32")
        input_length = ops.ones((batch_len,), dtype="int32") * ops.shape(y_pred)[1]
        label_length = ops.ones((batch_len,), dtype="int32") * ops.shape(y_true)[1]
        loss = ops.ctc_loss(ops.cast(y_true, "int32"), y_pred, label_length, input_length, mask_index=0)
        self.add_loss(ops.mean(loss))
        return y_pred


input_img = layers.Input(shape=(12, 4), name="image", dtype="float32")
labels = layers.Input(name="label", shape=(None,), dtype="float32")
x = layers.Bidirectional(layers.LSTM(16, return_sequences=True))(input_img)
x = layers.Dense(len(characters) + 2, name="dense2")(x)
output = CTCLayer(name="ctc_loss")(labels, x)
model = keras.models.Model(inputs=[input_img, labels], outputs=output, name="ocr_model_v1")
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(train_dataset, epochs=5)
