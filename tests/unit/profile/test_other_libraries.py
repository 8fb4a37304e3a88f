"""Kernels that communicate without NCCL, by their names in the sources of their libraries."""

from ncclt.profile.other_libraries import other_library


def test_library_is_known_by_its_kernel():
    for kernel, library in [
        ("void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)", "vLLM's custom all-reduce"),
        ("void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>()", "SGLang's custom all-reduce"),
        ("void aiter::cross_device_reduce_2stage<bf16, 8>()", "a custom all-reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<>()", "a custom all-reduce"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>()", "TensorRT-LLM"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<>()", "TensorRT-LLM"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>()", "FlashInfer"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>()", "DeepEP"),
        ("void deep_ep::internode_ll::dispatch<false, 7168>(void*)", "DeepEP"),
        ("void mscclpp::allgather<int>()", "MSCCL++"),
        ("nvshmemi_proxy_quiet_kernel()", "NVSHMEM"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>()", "Transformer Engine's userbuffers"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", "PyTorch's symmetric memory"),
        ("void two_shot_all_reduce_kernel<float, 16, 8>()", "PyTorch's symmetric memory"),
        ("my_fused_AllGather_gemm", "another library"),
        ("reduceScatterKernel<float>", "another library"),
    ]:
        assert other_library(kernel) == library


def test_nccl_and_compute_are_no_other_library():
    for kernel in [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1>()",
        "void softmax<BlockAllReduce<float>>()",
        "void warp_all_reduce_sum<float>()",
        "void small_gather_kernel()",
        "void smallReduce<float>()",
        "void scatter_reduce<float>()",
        "triton_poi_fused_all_gather_into_tensor_cat_3",
    ]:
        assert other_library(kernel) == ""
