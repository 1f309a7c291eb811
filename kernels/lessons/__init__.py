"""The kernels that the lessons go on with where the reader has not written them: ``lesson_NN.py``, made from the notebooks.

``make refresh`` writes these files (``tools/lesson_kernels.py``): of each cell that ends in ``check.kernel`` the kernel, with
the lines of the answer below it in place of its ``...``, and what it uses. Do not edit them: edit the notebook.
"""
