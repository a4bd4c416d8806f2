# An image with only the agent. To copy the agent into another image: COPY --from=muster-agent /muster/agent /muster/agent
# `make images` builds it from the folder dist/image.
FROM scratch
COPY agent /muster/agent
# Use a number, not a name: Kubernetes can then verify that the user is not root.
USER 65532:65532
EXPOSE 7896
ENTRYPOINT ["/muster/agent"]
