"""What this machine's user agreed to, where others write what is wanted: lines of a VM sifted,
requests compared.
"""
