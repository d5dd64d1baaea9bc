"""Simple convolutional network on images of digits."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

num_classes = 10
input_shape = (8, 8, 1)
digits = load_digits()
x_train, x_test = digits.images[:1400], digits.images[1400:]
y_train, y_test = digits.target[:1400], digits.target[1400:]
x_train = np.expand_dims(x_train.astype("float32") / 16, -1)
x_test = np.expand_dims(x_test.astype("float32") / 16, -1)
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu", padding="same"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=8, validation_split=0.1)
score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
