# shellcheck shell=sh
# Prints the PCI addresses of the NVIDIA GPUs and how many device nodes they have.
# Uses pci_gpus.
echo "gpus=$(pci_gpus)"
nodes=0
for node in "$R"/dev/nvidia[0-9]*; do
    test ! -e "$node" || nodes=$((nodes + 1))
done
echo "nodes=$nodes"
